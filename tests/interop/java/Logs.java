import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.channels.ClosedChannelException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Comparator;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.PriorityQueue;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Delayed;
import java.util.concurrent.FutureTask;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import java.util.stream.Collectors;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;

import kafka.log.Cleaner;
import kafka.log.LogCleanerManager;
import kafka.log.LogManager;
import kafka.log.LogToClean;
import kafka.log.PreCleanStats;
import kafka.log.UnifiedLog;
import kafka.server.BrokerTopicStats;
import kafka.server.RequestLocal;
import kafka.server.checkpoints.OffsetCheckpointFile;
import kafka.utils.Pool;

import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.KafkaStorageException;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.record.FileRecords;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.Records;
import org.apache.kafka.common.utils.Exit;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.common.MetadataVersion;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.log.AbortedTxn;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.BatchMetadata;
import org.apache.kafka.storage.internals.log.CleanerConfig;
import org.apache.kafka.storage.internals.log.EpochEntry;
import org.apache.kafka.storage.internals.log.FetchDataInfo;
import org.apache.kafka.storage.internals.log.FetchIsolation;
import org.apache.kafka.storage.internals.log.LogAppendInfo;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogOffsetMetadata;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.LogStartOffsetIncrementReason;
import org.apache.kafka.storage.internals.log.ProducerStateEntry;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.VerificationGuard;
import org.apache.kafka.storage.internals.utils.Throttler;

import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The log layer of Kafka's broker, driven by commands: a line of JSON each, answered by a line of JSON. Its clock only
 * moves when told to, and background work is done when it is due.
 */
public class Logs {
    private static final ObjectMapper JSON = new ObjectMapper();

    /** A clock, and what waits for it. */
    private static class Clock implements Time, Scheduler {
        private record Task(long due, Runnable task) { }

        private long now;
        private PriorityQueue<Task> waiting = new PriorityQueue<>(Comparator.comparingLong(Task::due));

        void advance(long ms) {
            now += ms;
            while (!waiting.isEmpty() && waiting.peek().due <= now) {
                waiting.poll().task.run();
            }
        }

        @Override
        public long milliseconds() {
            return now;
        }

        @Override
        public long nanoseconds() {
            return now * 1_000_000;
        }

        @Override
        public void sleep(long ms) {
            advance(ms);
        }

        @Override
        public void waitObject(Object object, Supplier<Boolean> condition, long deadline) { }

        @Override
        public void startup() { }

        @Override
        public void shutdown() {
            waiting.clear();
        }

        @Override
        public ScheduledFuture<?> schedule(String name, Runnable task, long delayMs, long periodMs) {
            if (periodMs < 0 && delayMs <= 0) {
                task.run();
            } else if (periodMs < 0) {
                waiting.add(new Task(now + delayMs, task));
            }
            return new Scheduled();
        }

        @Override
        public void resizeThreadPool(int size) { }
    }

    private static class Scheduled extends FutureTask<Void> implements ScheduledFuture<Void> {
        Scheduled() {
            super(() -> null);
        }

        @Override
        public long getDelay(TimeUnit unit) {
            return 0;
        }

        @Override
        public int compareTo(Delayed other) {
            return 0;
        }
    }

    private static class Halted extends RuntimeException { }

    private final Clock clock = new Clock();
    private LogDirFailureChannel failures;
    private LogManager manager;
    private Pool<TopicPartition, UnifiedLog> logs;
    private LogCleanerManager cleanerManager;
    private Cleaner cleaner;
    private UnifiedLog log;

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        Exit.setHaltProcedure((status, message) -> {
            throw new Halted();
        });
        Logs driven = new Logs();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<String, Object> answer = new TreeMap<>();
            try {
                driven.answer(JSON.readTree(line), answer);
            } catch (Throwable e) {
                e.printStackTrace();
                answer.clear();
                answer.put("error", errorOf(e));
                answer.put("text", String.valueOf(e));
            }
            answers.println(JSON.writeValueAsString(answer));
            answers.flush();
        }
    }

    /** The code that a client would get; the class of what is none. */
    private static String errorOf(Throwable e) {
        Errors code = e instanceof Exception ? Errors.forException(e) : Errors.UNKNOWN_SERVER_ERROR;
        return code == Errors.UNKNOWN_SERVER_ERROR ? e.getClass().getSimpleName() : code.name();
    }

    private void answer(JsonNode asked, Map<String, Object> answer) throws Exception {
        long offset = asked.path("offset").asLong();
        switch (asked.get("do").asText()) {
            case "load" -> load(asked, answer);
            case "use" -> {
                String[] name = asked.get("partition").asText().split("-(?=\\d+$)");
                log = logs.get(new TopicPartition(name[0], Integer.parseInt(name[1])));
            }
            case "advance" -> clock.advance(asked.get("ms").asLong());
            case "append" -> appended(log.appendAsLeader(records(asked), asked.get("epoch").asInt(),
                AppendOrigin.valueOf(asked.get("origin").asText()), MetadataVersion.latestProduction(),
                RequestLocal.NoCaching(), VerificationGuard.SENTINEL), answer);
            case "follow" -> appended(log.appendAsFollower(records(asked), asked.get("epoch").asInt()), answer);
            case "high_watermark" -> answer.put("offset", log.updateHighWatermark(offset));
            case "truncate" -> {
                boolean cuts = offset < log.activeSegment().baseOffset();
                answer.put("done", log.truncateTo(offset));
                if (cuts) {
                    tellCleaner();
                }
            }
            case "truncate_fully" -> {
                log.truncateFullyAndStartAt(offset, Option.empty());
                tellCleaner();
            }
            case "start" -> answer.put("done",
                log.maybeIncrementLogStartOffset(offset, LogStartOffsetIncrementReason.ClientRecordDeletion));
            case "roll" -> log.roll(Option.empty());
            case "flush" -> log.flush(false);
            case "retain" -> answer.put("count", log.deleteOldSegments());
            case "expire" -> log.removeExpiredProducers(clock.milliseconds());
            case "timestamp" -> {
                Option<FileRecords.TimestampAndOffset> found =
                    log.fetchOffsetByTimestamp(asked.get("timestamp").asLong(), Option.empty());
                answer.put("found", found.isEmpty() ? null : List.of(found.get().timestamp, found.get().offset,
                    found.get().leaderEpoch.orElse(-1)));
            }
            case "read" -> read(asked, answer);
            case "state" -> answer.putAll(state(log));
            case "clean" -> clean(answer);
            case "close" -> {
                clock.advance(0);
                manager.shutdown(-1);
                manager = null;
                clock.shutdown();
            }
            default -> throw new IllegalArgumentException(asked.toString());
        }
    }

    /** As `LogManager` does after truncations. */
    private void tellCleaner() {
        cleanerManager.maybeTruncateCheckpoint(log.parentDirFile(), log.topicPartition(),
            log.activeSegment().baseOffset());
    }

    private static MemoryRecords records(JsonNode asked) {
        return MemoryRecords.readableRecords(ByteBuffer.wrap(Base64.getDecoder().decode(asked.get("records").asText())));
    }

    private static void appended(LogAppendInfo info, Map<String, Object> answer) {
        answer.put("first", info.firstOffset());
        answer.put("last", info.lastOffset());
    }

    private void read(JsonNode asked, Map<String, Object> answer) throws IOException {
        FetchDataInfo read = log.read(asked.get("offset").asLong(), asked.get("bytes").asInt(),
            FetchIsolation.valueOf(asked.get("isolation").asText()), asked.get("one").asBoolean());
        Records records = read.records;
        ByteBuffer bytes = ByteBuffer.allocate(records.sizeInBytes());
        if (records instanceof FileRecords inFile) {
            inFile.readInto(bytes, 0);
        }
        byte[] copy = new byte[bytes.remaining()];
        bytes.get(copy);
        LogOffsetMetadata start = read.fetchOffsetMetadata;
        answer.put("start", List.of(start.messageOffset, start.segmentBaseOffset, start.relativePositionInSegment));
        answer.put("records", Base64.getEncoder().encodeToString(copy));
        answer.put("incomplete", read.firstEntryIncomplete);
        answer.put("aborted", read.abortedTransactions.map(found -> found.stream()
            .map(one -> List.of(one.producerId(), one.firstOffset())).collect(Collectors.toList())).orElse(List.of()));
    }

    /** Loads the logs of directories as a broker does that starts. */
    private void load(JsonNode asked, Map<String, Object> answer) throws Exception {
        if (manager != null) {
            logs.values().foreach(one -> {
                one.closeHandlers();
                return null;
            });
            unlock();
        }
        clock.shutdown();
        clock.now = asked.get("now").asLong();
        List<File> dirs = new ArrayList<>();
        asked.get("dirs").forEach(dir -> dirs.add(new File(dir.asText())));
        failures = new LogDirFailureChannel(dirs.size());
        Properties topic = new Properties();
        asked.get("settings").fields().forEachRemaining(entry -> topic.put(entry.getKey(), entry.getValue().asText()));
        LogConfig defaults = LogConfig.fromProps(Map.of(), topic);
        CleanerConfig cleaning = new CleanerConfig(1, asked.get("dedupe").asLong(), 0.9, 1 << 19, 1 << 20,
            Double.MAX_VALUE, 15000, false);
        manager = null;
        logs = new Pool<>(Option.empty());
        log = null;
        manager = new LogManager(CollectionConverters.asScala(dirs).toSeq(), CollectionConverters.asScala(List.<File>of())
            .toSeq(), resource -> new Properties(), defaults, cleaning, 1, 1000, 1000, 1000, 1000, 900_000,
            new ProducerStateManagerConfig(asked.get("expiration").asInt(), false), 600_000, MetadataVersion.IBP_3_9_IV0,
            clock, new BrokerTopicStats(false), failures, clock, true, false, 1000);
        manager.startup(CollectionConverters.asScala(Set.<String>of()), manager.startup$default$2());
        Set<String> offline = new HashSet<>();
        for (File dir : dirs) {
            if (!failures.hasOfflineLogDir(dir.getAbsolutePath())) {
                try {
                    highWatermarks(dir);
                } catch (KafkaStorageException e) {
                    assert failures.hasOfflineLogDir(dir.getAbsolutePath());
                }
            }
            if (failures.hasOfflineLogDir(dir.getAbsolutePath())) {
                offline.add(dir.getName());
                if (offline.size() == dirs.size()) {
                    throw new Halted();
                }
                manager.handleLogDirFailure(dir.getAbsolutePath());
            }
        }
        Map<String, Object> states = new TreeMap<>();
        for (UnifiedLog one : CollectionConverters.asJava(manager.allLogs())) {
            states.put(one.dir().getParentFile().getName() + "/" + one.dir().getName(), state(one));
            if (!one.isFuture()) {
                logs.put(one.topicPartition(), one);
            }
        }
        cleanerManager = new LogCleanerManager(manager.liveLogDirs(), logs, failures);
        cleaner = new Cleaner(0, new SkimpyOffsetMap((int) cleaning.dedupeBufferSize, "MD5"), cleaning.ioBufferSize / 2,
            cleaning.maxMessageSize, cleaning.dedupeBufferLoadFactor,
            new Throttler(Double.MAX_VALUE, 300, "cleaner-io", "bytes", clock), clock, partition -> null);
        answer.put("offline", offline.stream().sorted().toList());
        answer.put("logs", states);
    }

    /** As `Partition` does when it gets its log. */
    private void highWatermarks(File dir) throws IOException {
        scala.collection.Map<TopicPartition, Object> known =
            new OffsetCheckpointFile(new File(dir, "replication-offset-checkpoint"), failures).read();
        for (UnifiedLog one : CollectionConverters.asJava(manager.allLogs())) {
            if (one.dir().getParentFile().equals(dir)) {
                Option<Object> offset = known.get(one.topicPartition());
                one.updateHighWatermark(offset.isEmpty() ? 0L : (Long) offset.get());
            }
        }
    }

    /** The locks of a process that dies are gone; here only its logs die. */
    private void unlock() throws Exception {
        var field = LogManager.class.getDeclaredField("dirLocks");
        field.setAccessible(true);
        for (Object lock : CollectionConverters.asJava((scala.collection.Seq<?>) field.get(manager))) {
            try {
                ((org.apache.kafka.server.util.FileLock) lock).destroy();
            } catch (ClosedChannelException e) {
                continue;  // that of a directory that is offline
            }
        }
    }

    /** One pass of the cleaner, as its thread does it. */
    private void clean(Map<String, Object> answer) throws Exception {
        PreCleanStats stats = new PreCleanStats();
        Option<LogToClean> grabbed = cleanerManager.grabFilthiestCompactedLog(clock, stats);
        if (grabbed.isDefined()) {
            LogToClean found = grabbed.get();
            long end = found.firstDirtyOffset();
            try {
                end = (Long) cleaner.clean(found)._1;
            } catch (Exception e) {
                cleanerManager.markPartitionUncleanable(found.log().parentDir(), found.topicPartition());
                e.printStackTrace();
                answer.put("failed", errorOf(e));
            } finally {
                cleanerManager.doneCleaning(found.topicPartition(), found.log().parentDirFile(), end);
            }
            answer.put("partition", found.topicPartition().toString());
            answer.put("range", List.of(found.firstDirtyOffset(), found.firstUncleanableOffset()));
            answer.put("bytes", List.of(found.cleanBytes(), found.cleanableBytes()));
            answer.put("end", end);
        }
    }

    private static Map<String, Object> state(UnifiedLog log) throws IOException {
        Map<String, Object> state = new TreeMap<>();
        state.put("start", log.logStartOffset());
        state.put("end", log.logEndOffset());
        state.put("recovery", log.recoveryPoint());
        state.put("high_watermark", log.highWatermark());
        state.put("stable", log.lastStableOffset());
        state.put("topic_id", log.topicId().isEmpty() ? null : log.topicId().get().toString());
        List<EpochEntry> epochs = log.leaderEpochCache().get().epochEntries();
        state.put("epochs", epochs.stream().map(one -> List.of(one.epoch, one.startOffset)).toList());
        List<Object> segments = new ArrayList<>();
        for (LogSegment one : log.logSegments()) {
            List<AbortedTxn> aborted = one.txnIndex().allAbortedTxns();
            segments.add(Arrays.asList(one.baseOffset(), one.size(), one.maxTimestampSoFar(), aborted.stream().map(txn ->
                List.of(txn.producerId(), txn.firstOffset(), txn.lastOffset(), txn.lastStableOffset())).toList()));
        }
        state.put("segments", segments);
        Map<String, Object> producers = new TreeMap<>();
        for (ProducerStateEntry one : log.producerStateManager().activeProducers().values()) {
            List<List<Object>> batches = new ArrayList<>();
            for (BatchMetadata batch : one.batchMetadata()) {
                batches.add(List.of(batch.lastSeq, batch.lastOffset, batch.offsetDelta, batch.timestamp));
            }
            producers.put(String.valueOf(one.producerId()), List.of((int) one.producerEpoch(), one.coordinatorEpoch(),
                one.lastTimestamp(), one.currentTxnFirstOffset().orElse(-1), batches));
        }
        state.put("producers", producers);
        return state;
    }
}
