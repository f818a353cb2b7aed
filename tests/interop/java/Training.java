import java.time.Duration;
import java.util.List;
import java.util.Map;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.tools.TopicCommand;

/**
 * Loads what brokers, clients and tools load, for the archive that the JVM writes when it ends: server.properties and
 * HOST:PORT are its arguments.
 */
public class Training {
    public static void main(String[] arguments) throws Exception {
        Thread broker = new Thread(() -> kafka.Kafka.main(new String[] {arguments[0]}));
        broker.setDaemon(true);
        broker.start();
        Map<String, Object> settings = Map.of("bootstrap.servers", arguments[1], "group.id", "g",
            "auto.offset.reset", "earliest");
        try (Admin admin = Admin.create(settings)) {
            admin.createTopics(List.of(new NewTopic("training", 3, (short) 1))).all().get();
        }
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
             var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            producer.send(new ProducerRecord<>("training", "k", "v")).get();
            consumer.subscribe(List.of("training"));
            while (consumer.poll(Duration.ofSeconds(1)).isEmpty()) { }
            consumer.commitSync();
        }
        TopicCommand.main(new String[] {"--bootstrap-server", arguments[1], "--describe"});
        System.exit(0);
    }
}
