import java.lang.reflect.Method;
import java.util.Map;
import java.util.TreeMap;

import kafka.server.DynamicBrokerConfig$;
import kafka.server.KafkaConfig;

import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.storage.internals.log.LogConfig;

import scala.collection.Set;

/**
 * Kafka's definitions of its settings. A line each, columns separated by tabs: "broker" or "topic", name, type, default,
 * validator, "broker", "cluster" or "static" for where a broker's setting may change at run time, and whether Kafka
 * keeps it to itself.
 */
public class Configs {
    public static void main(String[] arguments) throws Exception {
        Set<?> perBroker = set("PerBrokerConfigs");
        Set<?> dynamic = set("AllDynamicConfigs");
        ConfigDef broker = KafkaConfig.configDef();
        for (ConfigDef.ConfigKey key : sorted(broker).values())
            print("broker", key, contains(perBroker, key) ? "broker" : contains(dynamic, key) ? "cluster" : "static");
        for (ConfigDef.ConfigKey key : sorted(LogConfig.configDefCopy()).values())
            print("topic", key, "");
    }

    /** A set of names that is private to Kafka's package, under a name that Scala has made longer. */
    private static Set<?> set(String name) throws Exception {
        for (Method method : DynamicBrokerConfig$.class.getDeclaredMethods())
            if (method.getName().endsWith(name) && method.getParameterCount() == 0) {
                method.setAccessible(true);
                return (Set<?>) method.invoke(DynamicBrokerConfig$.MODULE$);
            }
        throw new NoSuchMethodException(name);
    }

    @SuppressWarnings("unchecked")
    private static boolean contains(Set<?> names, ConfigDef.ConfigKey key) {
        return ((Set<String>) names).contains(key.name);
    }

    private static Map<String, ConfigDef.ConfigKey> sorted(ConfigDef definitions) {
        return new TreeMap<>(definitions.configKeys());
    }

    private static void print(String kind, ConfigDef.ConfigKey key, String dynamic) {
        String value = ConfigDef.convertToString(key.defaultValue, key.type);
        System.out.println(String.join("\t", kind, key.name, key.type.toString(), String.valueOf(value),
            String.valueOf(key.validator), dynamic, String.valueOf(key.internalConfig)));
    }
}
