import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

import org.apache.kafka.common.utils.Exit;

/**
 * Kafka's command-line tools, many runs in one JVM. A line a run comes in: main class and arguments, URL-encoded, with
 * spaces between. For each: its exit status, a space, how many bytes it printed, a newline, and these bytes.
 */
public class Tools {
    private static class Exited extends RuntimeException {
        final int status;

        Exited(int status, String message) {
            super(message);
            this.status = status;
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        Exit.setExitProcedure((status, message) -> {
            throw new Exited(status, message);
        });
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = Arrays.stream(line.split(" "))
                .map(word -> URLDecoder.decode(word, StandardCharsets.UTF_8)).toArray(String[]::new);
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream out = new PrintStream(printed, true, StandardCharsets.UTF_8);
            System.setOut(out);
            System.setErr(out);
            int status = run(words[0], Arrays.copyOfRange(words, 1, words.length), out);
            out.flush();
            answers.print(status + " " + printed.size() + "\n");
            answers.write(printed.toByteArray());
            answers.flush();
        }
    }

    private static int run(String tool, String[] arguments, PrintStream out) throws Exception {
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) arguments);
            return 0;
        } catch (InvocationTargetException e) {
            if (e.getCause() instanceof Exited) {
                Exited exited = (Exited) e.getCause();
                if (exited.getMessage() != null) {
                    out.println(exited.getMessage());
                }
                return exited.status;
            }
            e.getCause().printStackTrace(out);
            return 1;
        }
    }
}
