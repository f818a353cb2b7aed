import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Copies records exactly once, some in each transaction, every third of which it aborts: HOST:PORT,... INPUT OUTPUT ID.
 * A line with a number makes it copy until so many are copied; it prints how many there are after each commit.
 */
public class JavaCopier {
    private static final String LIMIT_MS = "120000";

    private final Map<String, Object> producing = new HashMap<>();
    private final KafkaConsumer<String, String> consumer;
    private final String output;
    private KafkaProducer<String, String> producer;
    private int copied;
    private int transactions;

    private JavaCopier(String bootstrap, String input, String output, String id) {
        this.output = output;
        producing.put("bootstrap.servers", bootstrap);
        producing.put("transactional.id", id);
        producing.put("max.block.ms", LIMIT_MS);
        producing.put("reconnect.backoff.max.ms", "500");
        Map<String, Object> consuming = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "group.id", id,
            "auto.offset.reset", "earliest", "enable.auto.commit", "false", "isolation.level", "read_committed"));
        consuming.put("max.poll.records", "5");
        consuming.put("session.timeout.ms", "10000");
        consuming.put("default.api.timeout.ms", LIMIT_MS);
        consuming.put("reconnect.backoff.max.ms", "500");
        consumer = new KafkaConsumer<>(consuming, new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of(input));
        renew();
    }

    private void renew() {
        if (producer != null) {
            producer.close(Duration.ZERO);
        }
        producer = new KafkaProducer<>(producing, new StringSerializer(), new StringSerializer());
        producer.initTransactions();
    }

    private void copy(int count) {
        while (copied < count) {
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
            if (records.isEmpty()) {
                continue;
            }
            if (isCopied(records)) {
                copied += records.count();
            } else {
                rewind();
            }
            System.out.println(copied);
        }
    }

    private boolean isCopied(ConsumerRecords<String, String> records) {
        transactions++;
        try {
            producer.beginTransaction();
            for (ConsumerRecord<String, String> record : records) {
                producer.send(new ProducerRecord<>(output, record.partition(), null, record.value()));
            }
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            for (TopicPartition partition : records.partitions()) {
                List<ConsumerRecord<String, String>> some = records.records(partition);
                offsets.put(partition, new OffsetAndMetadata(some.get(some.size() - 1).offset() + 1));
            }
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            if (transactions % 3 == 0) {
                producer.abortTransaction();
                return false;
            }
            commit();
            return true;
        } catch (ProducerFencedException | OutOfOrderSequenceException | AuthorizationException e) {
            System.err.println(e);
            renew();
        } catch (KafkaException e) {
            System.err.println(e);
            try {
                producer.abortTransaction();
            } catch (KafkaException fatal) {
                System.err.println(fatal);
                renew();
            }
        }
        return false;
    }

    /** Whether it worked is not known after a timeout: it is asked again. */
    private void commit() {
        for (;;) {
            try {
                producer.commitTransaction();
                return;
            } catch (TimeoutException e) {
                System.err.println(e);
            }
        }
    }

    /** To what is committed: more than was known, where the answer to a commit was lost. */
    private void rewind() {
        copied = 0;
        for (Map.Entry<TopicPartition, OffsetAndMetadata> entry : consumer.committed(consumer.assignment()).entrySet()) {
            long offset = entry.getValue() == null ? 0 : entry.getValue().offset();
            consumer.seek(entry.getKey(), offset);
            copied += (int) offset;
        }
    }

    public static void main(String[] arguments) throws Exception {
        JavaCopier copier = new JavaCopier(arguments[0], arguments[1], arguments[2], arguments[3]);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            copier.copy(Integer.parseInt(line));
        }
        copier.consumer.close();
        copier.producer.close();
        System.exit(0);
    }
}
