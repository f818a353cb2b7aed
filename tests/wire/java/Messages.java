import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;

import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.message.ConsumerProtocolAssignment;
import org.apache.kafka.common.message.ConsumerProtocolSubscription;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.protocol.Readable;

/**
 * Kafka's generated classes as a judge. First come lines "H key version request-header response-header" for every
 * version of every API. Then for each line "name version hex" that is read, the hex of what Kafka writes after it has
 * read those bytes, "left N" if it did not read the last N of them, or "E" and why.
 */
public class Messages {
    private static final HexFormat HEX = HexFormat.of();

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (ApiMessageType type : ApiMessageType.values())
            for (short version = type.lowestSupportedVersion(); version <= type.highestSupportedVersion(true); version++)
                out.println("H " + type.apiKey() + " " + version + " " + type.requestHeaderVersion(version) + " "
                    + type.responseHeaderVersion(version));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ", -1);
            short version = Short.parseShort(words[1]);
            ByteBuffer buffer = ByteBuffer.wrap(HEX.parseHex(words[2]));
            String answer;
            try {
                answer = hex(again(words[0], version, buffer));
                if (buffer.hasRemaining())
                    answer = "left " + buffer.remaining();
            } catch (RuntimeException e) {
                answer = "E " + e.toString().replace('\n', ' ');
            }
            out.println(answer);
        }
        out.flush();
    }

    private static ByteBuffer again(String name, short version, ByteBuffer buffer) throws Exception {
        if (name.equals("subscription")) {
            ConsumerProtocolSubscription read = ConsumerProtocol.deserializeConsumerProtocolSubscription(buffer);
            return MessageUtil.toVersionPrefixedByteBuffer(version, read);
        }
        if (name.equals("assignment")) {
            ConsumerProtocolAssignment read = ConsumerProtocol.deserializeConsumerProtocolAssignment(buffer);
            return MessageUtil.toVersionPrefixedByteBuffer(version, read);
        }
        Message message = (Message) Class.forName("org.apache.kafka.common.message." + name + "Data")
            .getConstructor(Readable.class, short.class).newInstance(new ByteBufferAccessor(buffer), version);
        return MessageUtil.toByteBuffer(message, version);
    }

    private static String hex(ByteBuffer bytes) {
        byte[] array = new byte[bytes.remaining()];
        bytes.get(array);
        return HEX.formatHex(array);
    }
}
