import java.util.Arrays;
import java.util.Properties;

import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Counts words exactly once, and writes each new count: HOST:PORT,... INPUT OUTPUT APPLICATION STATE-FOLDER.
 * Prints the states that it reaches; ends when its input does.
 */
public class WordCount {
    private static Properties properties(String bootstrap, String application, String folder) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("application.id", application);
        properties.put("state.dir", folder);
        properties.put("processing.guarantee", "exactly_once_v2");
        properties.put("replication.factor", "3");
        properties.put("num.stream.threads", "2");
        properties.put("commit.interval.ms", "1000");
        // each count is written, not only the last of a commit interval
        properties.put("statestore.cache.max.bytes", "0");
        properties.put("session.timeout.ms", "6000");
        properties.put("heartbeat.interval.ms", "1000");
        properties.put("auto.offset.reset", "earliest");
        properties.put("reconnect.backoff.max.ms", "500");
        properties.put("repartition.purge.interval.ms", "1000");
        // longer than a rebalance: the next instance restores while a transaction of the one before is open
        properties.put("producer.transaction.timeout.ms", "20000");
        return properties;
    }

    public static void main(String[] arguments) throws Exception {
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(arguments[1], Consumed.with(Serdes.String(), Serdes.String()))
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with("words", Serdes.String(), Serdes.String()))
            .count(Materialized.as("counts"))
            .toStream()
            .mapValues(count -> Long.toString(count))
            .to(arguments[2], Produced.with(Serdes.String(), Serdes.String()));
        KafkaStreams streams = new KafkaStreams(
            builder.build(), properties(arguments[0], arguments[3], arguments[4]));
        streams.setStateListener((now, before) -> System.out.println(now));
        streams.start();
        while (System.in.read() >= 0) {
            continue;
        }
        streams.close();
        System.exit(0);
    }
}
