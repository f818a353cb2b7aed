import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.StringReader;
import java.nio.charset.StandardCharsets;
import java.util.Properties;

import kafka.server.KafkaConfig;

/**
 * Whether Kafka starts with these settings. A case on each line of standard input: the settings in the format of
 * java.util.Properties, with tabs between them. A line of output for each: "ok", or the first line of the error.
 */
public class Verdicts {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.ISO_8859_1));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Properties properties = new Properties();
            properties.load(new StringReader(line.replace('\t', '\n')));
            System.out.println(verdict(properties));
        }
    }

    private static String verdict(Properties properties) {
        try {
            KafkaConfig.fromProps(properties, false);
            return "ok";
        } catch (Throwable error) {
            return String.valueOf(error.getMessage()).split("\n")[0];
        }
    }
}
