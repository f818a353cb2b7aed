import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.kafka.common.message.LeaderAndIsrRequestData;
import org.apache.kafka.common.message.UpdateMetadataRequestData;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

/**
 * Times Kafka's generated codec. Each line of standard input is "encode|decode api-key version file seconds", where the
 * file holds the body of a request; the answer is the seconds of one encoding or decoding, as the median of batches.
 */
public class KafkaCodec {
    static ApiMessage read(int apiKey, ByteBuffer buffer, short version) {
        ByteBufferAccessor readable = new ByteBufferAccessor(buffer);
        return apiKey == 4
            ? new LeaderAndIsrRequestData(readable, version)
            : new UpdateMetadataRequestData(readable, version);
    }

    static ByteBuffer write(ApiMessage message, short version) {
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer buffer = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(buffer), cache, version);
        return buffer;
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            int apiKey = Integer.parseInt(words[1]);
            short version = Short.parseShort(words[2]);
            byte[] body = Files.readAllBytes(Path.of(words[3]));
            double seconds = Double.parseDouble(words[4]);
            ApiMessage message = read(apiKey, ByteBuffer.wrap(body), version);
            if (!ByteBuffer.wrap(body).equals(write(message, version).flip()))
                throw new AssertionError("other bytes: " + line);
            boolean encode = words[0].equals("encode");
            Object kept = null;
            int times = 0;
            long begin = System.nanoTime(), now = begin;
            do {
                kept = encode ? write(message, version) : read(apiKey, ByteBuffer.wrap(body), version);
                times++;
                now = System.nanoTime();
            } while (now - begin < seconds * 1e9);
            System.out.println((now - begin) / 1e9 / times + " " + (kept == null));
        }
    }
}
