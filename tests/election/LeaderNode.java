import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.UUID;

/**
 * Writes and reads leader nodes as Flink does, one a line.
 * "write ADDRESS-IN-UTF-16-HEX UUID" is answered with the bytes in hex, "read BYTES-IN-HEX" with "ADDRESS-IN-UTF-16-HEX UUID"
 * or "refused EXCEPTION".
 */
public class LeaderNode {
    private static final HexFormat HEX = HexFormat.of();

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ", -1);
            System.out.println(words[0].equals("write") ? write(words[1], words[2]) : read(words[1]));
        }
    }

    private static String write(String address, String id) throws Exception {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        ObjectOutputStream out = new ObjectOutputStream(bytes);
        out.writeUTF(fromHex(address));
        out.writeObject(id.equals("null") ? null : UUID.fromString(id));
        out.close();
        return HEX.formatHex(bytes.toByteArray());
    }

    private static String read(String hex) {
        try {
            ObjectInputStream in = new ObjectInputStream(new ByteArrayInputStream(HEX.parseHex(hex)));
            String address = in.readUTF();
            UUID id = (UUID) in.readObject();
            return toHex(address) + " " + id;
        } catch (Exception | StackOverflowError e) {
            return "refused " + e.getClass().getSimpleName();
        }
    }

    private static String toHex(String text) {
        StringBuilder hex = new StringBuilder();
        text.chars().forEach(unit -> hex.append(String.format("%04x", unit)));
        return hex.toString();
    }

    private static String fromHex(String hex) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < hex.length(); i += 4) {
            text.append((char) Integer.parseInt(hex.substring(i, i + 4), 16));
        }
        return text.toString();
    }
}
