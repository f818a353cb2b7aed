import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/** A member of a group: HOST:PORT,... GROUP TOPIC STRATEGY INSTANCE; what it prints is said in clients/member.py. */
public class JavaMember {
    private static volatile boolean ended;
    /** The values of records whose commit failed, by partition and offset. */
    private static final Map<TopicPartition, TreeMap<Long, String>> unsure = new HashMap<>();

    public static void main(String[] arguments) {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", arguments[0],
            "group.id", arguments[1], "auto.offset.reset", "earliest", "enable.auto.commit", "false",
            "session.timeout.ms", System.getenv("SESSION_MS"), "heartbeat.interval.ms", "300", "metadata.max.age.ms", "1000",
            "reconnect.backoff.max.ms", "500"));
        settings.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer."
            + (arguments[3].equals("range") ? "RangeAssignor" : "CooperativeStickyAssignor"));
        if (!arguments[4].equals("-")) {
            settings.put("group.instance.id", arguments[4]);
        }
        Thread input = new Thread(() -> {
            try {
                System.in.transferTo(java.io.OutputStream.nullOutputStream());
            } catch (IOException e) {
                System.err.println(e);
            }
            ended = true;
        });
        input.setDaemon(true);
        input.start();
        String owned = "[]";
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(arguments[2]));
            while (!ended) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(100));
                if (!records.isEmpty()) {
                    try {
                        consumer.commitSync();
                        List<String> values = new ArrayList<>();
                        for (ConsumerRecord<String, String> record : records) {
                            values.add(record.value());
                        }
                        System.out.println("{\"read\": " + values + "}");
                    } catch (KafkaException e) {
                        System.err.println(e);
                        for (ConsumerRecord<String, String> record : records) {
                            unsure.computeIfAbsent(new TopicPartition(record.topic(), record.partition()), p -> new TreeMap<>())
                                .put(record.offset(), record.value());
                        }
                    }
                }
                if (!unsure.isEmpty()) {
                    sayWhatIsCommitted(consumer);
                }
                TreeSet<Integer> now = new TreeSet<>();
                for (TopicPartition partition : consumer.assignment()) {
                    now.add(partition.partition());
                }
                if (!now.toString().equals(owned)) {
                    owned = now.toString();
                    System.out.println("{\"owned\": " + owned + "}");
                }
            }
        }
        System.exit(0);
    }

    private static void sayWhatIsCommitted(KafkaConsumer<String, String> consumer) {
        try {
            Map<TopicPartition, OffsetAndMetadata> ends = consumer.committed(unsure.keySet(), Duration.ofSeconds(1));
            ends.forEach((partition, end) -> {
                Map<Long, String> committed = unsure.get(partition).headMap(end == null ? 0 : end.offset());
                if (!committed.isEmpty()) {
                    System.out.println("{\"read\": " + new ArrayList<>(committed.values()) + "}");
                    committed.clear();
                }
            });
            unsure.values().removeIf(Map::isEmpty);
        } catch (KafkaException e) {
            System.err.println(e);
        }
    }
}
