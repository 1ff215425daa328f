import com.alibaba.fastjson.JSON;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs commands of the stock admin tool one after the other, as a JVM for each would take seconds.
 *
 * <pre>
 * AdminLines COMMANDS RESULT   COMMANDS: a JSON list of argument lists; RESULT: a JSON list of what each has printed
 * </pre>
 */
public class AdminLines {
    public static void main(String[] args) throws Exception {
        int code = 1;
        Thread nudging = new Thread(new Nudging(Thread.currentThread()));
        nudging.setDaemon(true);
        nudging.start();
        try {
            String text = new String(Files.readAllBytes(Path.of(args[0])), StandardCharsets.UTF_8);
            List<String> printed = new ArrayList<>();
            for (Object line : JSON.parseArray(text)) {
                long began = System.currentTimeMillis();
                printed.add(run(JSON.parseArray(line.toString(), String.class).toArray(new String[0])));
                System.out.println(System.currentTimeMillis() - began + " ms " + line);
            }
            Files.write(Path.of(args[1]), JSON.toJSONString(printed).getBytes(StandardCharsets.UTF_8));
            code = 0;
        } catch (Throwable error) {
            error.printStackTrace();
        }
        System.exit(code);
    }

    private static String run(String[] command) throws Exception {
        PrintStream out = System.out;
        PrintStream err = System.err;
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream both = new PrintStream(printed, true, "UTF-8");
        System.setOut(both);
        System.setErr(both);
        try {
            NewCommands.run(command);
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        return printed.toString("UTF-8");
    }

    /** Some commands keep a client that they have shut down, and would fail when they are run again. */
    private static final class NewCommands extends MQAdminStartup {
        static void run(String[] command) {
            SUB_COMMANDS.clear();
            main0(command, null);
        }
    }

    /**
     * A client's event thread looks every three seconds whether it is to end, and a command waits for it. Woken, it
     * looks at once.
     */
    private static final class Nudging implements Runnable {
        private final Thread waiting;

        Nudging(Thread waiting) {
            this.waiting = waiting;
        }

        public void run() {
            while (true) {
                try {
                    Thread.sleep(20);
                } catch (InterruptedException end) {
                    return;
                }
                boolean joins = Arrays.stream(waiting.getStackTrace())
                    .anyMatch(frame -> frame.getClassName().endsWith(".ServiceThread"));
                if (joins) {
                    Thread.getAllStackTraces().keySet().stream()
                        .filter(thread -> thread.getName().startsWith("NettyEventExecutor"))
                        .forEach(Thread::interrupt);
                }
            }
        }
    }
}
