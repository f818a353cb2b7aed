import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Kafka's own client: its one argument is HOST:PORT,...; the protocol is in clients/serving.py. */
public class JavaClient {
    private static final Duration LIMIT = Duration.ofSeconds(120);

    private final Map<String, Object> servers;
    private final Admin admin;
    private final KafkaConsumer<String, String> consumer;
    private final Map<String, KafkaProducer<String, String>> producers = new HashMap<>();

    private JavaClient(String bootstrap) {
        servers = Map.of("bootstrap.servers", bootstrap);
        admin = Admin.create(servers);
        consumer = new KafkaConsumer<>(servers, new StringDeserializer(), new StringDeserializer());
    }

    private KafkaProducer<String, String> newProducer(String codec) {
        Map<String, Object> settings = new HashMap<>(servers);
        settings.put("compression.type", codec); // acks=all and idempotence are defaults
        settings.put("linger.ms", 5);
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    private Object produce(JsonNode request) throws Exception {
        KafkaProducer<String, String> producer =
            producers.computeIfAbsent(request.get("codec").asText(), this::newProducer);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (JsonNode given : request.get("records")) {
            ProducerRecord<String, String> record = new ProducerRecord<>(request.get("topic").asText(),
                given.get(0).asInt(), given.get(2).asLong(), "k", given.get(1).asText());
            record.headers().add("h", "1".getBytes(StandardCharsets.UTF_8));
            sent.add(producer.send(record));
        }
        for (Future<RecordMetadata> future : sent) {
            future.get(LIMIT.toSeconds(), TimeUnit.SECONDS);
        }
        return Map.of();
    }

    private Object fetch(JsonNode request, TopicPartition partition) {
        consumer.assign(Set.of(partition));
        consumer.seek(partition, request.get("offset").asLong());
        List<Object> records = new ArrayList<>();
        while (records.size() < request.get("count").asInt()) {
            for (ConsumerRecord<String, String> record : consumer.poll(LIMIT)) {
                if (records.size() < request.get("count").asInt()) {
                    Header header = record.headers().lastHeader("h");
                    List<Object> described = new ArrayList<>(
                        List.of(record.offset(), record.value(), record.timestamp(), record.key()));
                    described.add(header == null ? null : new String(header.value(), StandardCharsets.UTF_8));
                    records.add(described);
                }
            }
        }
        return Map.of("records", records);
    }

    private Object answer(JsonNode request) throws Exception {
        String topic = request.path("topic").asText();
        TopicPartition partition = new TopicPartition(topic, request.path("partition").asInt());
        switch (request.get("do").asText()) {
            case "create":
                admin.createTopics(List.of(new NewTopic(topic, request.get("partitions").asInt(),
                    (short) request.get("replicas").asInt()))).all().get();
                return Map.of();
            case "delete":
                admin.deleteTopics(List.of(topic)).all().get();
                return Map.of();
            case "topics":
                return Map.of("topics", admin.listTopics().names().get());
            case "delete_records":
                RecordsToDelete before = RecordsToDelete.beforeOffset(request.get("offset").asLong());
                admin.deleteRecords(Map.of(partition, before)).all().get();
                return Map.of();
            case "produce":
                return produce(request);
            case "fetch":
                return fetch(request, partition);
            case "offset_at":
                long time = request.get("timestamp_ms").asLong();
                return Map.of("offset", consumer.offsetsForTimes(Map.of(partition, time)).get(partition).offset());
            case "bounds":
                return Map.of("earliest", consumer.beginningOffsets(Set.of(partition)).get(partition),
                    "latest", consumer.endOffsets(Set.of(partition)).get(partition));
            default:
                throw new IllegalArgumentException(request.toString());
        }
    }

    public static void main(String[] arguments) throws Exception {
        JavaClient client = new JavaClient(arguments[0]);
        ObjectMapper json = new ObjectMapper();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            System.out.println(json.writeValueAsString(client.answer(json.readTree(line))));
        }
        System.exit(0);
    }
}
