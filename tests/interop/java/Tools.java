import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

import org.apache.kafka.common.utils.Exit;

/**
 * Kafka's command-line tools, many runs in one JVM. A line a run comes in: what the run reads, main class and arguments,
 * URL-encoded, with spaces between. For each: its exit status, a space, how many bytes it printed, a newline, and these
 * bytes.
 */
public class Tools {
    /** Ends a tool that wants to end the JVM; some catch it as a failure of their own, and exit once more. */
    private static class Exited extends RuntimeException {
        Exited(String message) {
            super(message, null, false, false);
        }
    }

    /** The first exit status that the run requested. */
    private static Integer exitStatus;

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        Exit.setExitProcedure((status, message) -> {
            if (exitStatus == null) {
                exitStatus = status;
            }
            throw new Exited(message);
        });
        // the same for all runs: Scala keeps the first that it finds
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream out = new PrintStream(printed, true, StandardCharsets.UTF_8);
        System.setOut(out);
        System.setErr(out);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = Arrays.stream(line.split(" "))
                .map(word -> URLDecoder.decode(word, StandardCharsets.UTF_8)).toArray(String[]::new);
            printed.reset();
            System.setIn(new ByteArrayInputStream(words[0].getBytes(StandardCharsets.UTF_8)));
            int status = run(words[1], Arrays.copyOfRange(words, 2, words.length), out);
            out.flush();
            answers.print(status + " " + printed.size() + "\n");
            answers.write(printed.toByteArray());
            answers.flush();
        }
    }

    private static int run(String tool, String[] arguments, PrintStream out) throws Exception {
        exitStatus = null;
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) arguments);
            return 0;
        } catch (InvocationTargetException e) {
            if (exitStatus != null) {
                if (e.getCause().getMessage() != null) {
                    out.println(e.getCause().getMessage());
                }
                return exitStatus;
            }
            e.getCause().printStackTrace(out);
            return 1;
        }
    }
}
