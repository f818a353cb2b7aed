import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;

/**
 * Prints the orders of Scala's and Java's collections. A line is a kind of key, "int", "string" or "partition", and keys
 * in the order in which they are added; the answer is six lines: immutable HashMap, immutable Set, mutable HashMap, the same after the
 * first key is put again, java.util.HashMap filled by computeIfAbsent, the same after it is asked for the first key again.
 */
public class IterationOrder {
    /** Hashes like org.apache.kafka.common.TopicPartition. */
    record Partition(String topic, int partition) {
        @Override
        public int hashCode() {
            return 31 * (31 + partition) + Objects.hashCode(topic);
        }

        @Override
        public String toString() {
            return topic + ":" + partition;
        }
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            List<Object> keys = new ArrayList<>();
            for (int i = 1; i < words.length; i++) {
                keys.add(key(words[0], words[i]));
            }
            scala.collection.immutable.HashMap<Object, Object> trie = new scala.collection.immutable.HashMap<>();
            scala.collection.immutable.Set<Object> small = (scala.collection.immutable.Set<Object>)
                scala.collection.immutable.Set$.MODULE$.empty();
            scala.collection.mutable.HashMap<Object, Object> table = new scala.collection.mutable.HashMap<>();
            for (Object key : keys) {
                trie = trie.updated(key, key);
                small = (scala.collection.immutable.Set<Object>) small.incl(key);
                table.put(key, key);
            }
            print(trie.keysIterator());
            print(small.iterator());
            print(table.keysIterator());
            java.util.HashMap<Object, Object> asked = new java.util.HashMap<>();
            for (Object key : keys) {
                asked.computeIfAbsent(key, k -> k);
            }
            String before = words(asked.keySet().iterator());
            if (!keys.isEmpty()) {
                table.put(keys.get(0), keys.get(0));
                asked.computeIfAbsent(keys.get(0), k -> k);
            }
            print(table.keysIterator());
            System.out.println(before);
            System.out.println(words(asked.keySet().iterator()));
        }
    }

    private static Object key(String kind, String text) {
        int colon = text.lastIndexOf(':');
        return switch (kind) {
            case "int" -> Integer.valueOf(text);
            case "string" -> text;
            default -> new Partition(text.substring(0, colon), Integer.parseInt(text.substring(colon + 1)));
        };
    }

    private static String words(java.util.Iterator<Object> keys) {
        List<String> words = new ArrayList<>();
        keys.forEachRemaining(key -> words.add(key.toString()));
        return String.join(" ", words);
    }

    private static void print(scala.collection.Iterator<Object> keys) {
        StringBuilder line = new StringBuilder();
        while (keys.hasNext()) {
            line.append(line.length() > 0 ? " " : "").append(keys.next());
        }
        System.out.println(line);
    }
}
