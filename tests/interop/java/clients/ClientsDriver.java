import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/**
 * Drives stock clients through everything they can do, each step checking what came of it.
 *
 * <pre>
 * ClientsDriver all    NAMESRV NAME [SCENARIO...]  every scenario, or these, several at a time
 * ClientsDriver delivery NAMESRV NAME [SCENARIO...]  SQL92, transactions, timed messages, request and reply
 * ClientsDriver resume NAMESRV NAME  goes on where "all" with the same NAME stopped; waits for a broker restart
 * ClientsDriver live   NAMESRV NAME  a producer and a consumer that stay until they are killed
 * ClientsDriver traced NAMESRV NAME  a producer and consumers that trace; prints "TRACED message-id"
 * ClientsDriver ask    NAMESRV NAME  requests that another client replies to
 * ClientsDriver answer NAMESRV NAME  replies to the requests of another client until it is killed
 * </pre>
 *
 * NAME is part of the names of topics and groups. A line "RESULT scenario ok" or "RESULT scenario failed: reason"
 * for each scenario; the last line is PASS or FAIL. Compiles against the clients of 4.9 and of 5.3.
 */
public class ClientsDriver {
    static final int AT_ONCE = 6;
    static final long LIMIT_S = 240;

    interface Scenario {
        void run() throws Exception;
    }

    public static void main(String[] args) throws Exception {
        boolean passed = false;
        try {
            Session session = new Session(args[1], args[2]);
            if (args[0].equals("live")) {
                new Live(session).run();
            }
            if (args[0].equals("answer")) {
                new Requests(session).answer();
            }
            Map<String, Scenario> scenarios = scenarios(args[0], session);
            if (args.length > 3) {
                scenarios.keySet().retainAll(Arrays.asList(args).subList(3, args.length));
            }
            passed = run(scenarios);
        } catch (Throwable error) {
            error.printStackTrace();
        }
        finish(passed);
    }

    /** Clients that a failed scenario left behind would keep the JVM alive. */
    static void finish(boolean passed) {
        print(passed ? "PASS" : "FAIL");
        System.exit(passed ? 0 : 1);
    }

    private static Map<String, Scenario> scenarios(String command, Session session) throws Exception {
        Map<String, Scenario> scenarios = new LinkedHashMap<>();
        switch (command) {
            case "all":
                new Retries(session).addTo(scenarios);
                new Consumers(session).addTo(scenarios);
                new Resuming(session).addTo(scenarios);
                new Producers(session).addTo(scenarios);
                new Queries(session).addTo(scenarios);
                return scenarios;
            case "delivery":
                new Delivery(session).addTo(scenarios);
                return scenarios;
            case "ask":
                scenarios.put("ask", new Requests(session)::ask);
                return scenarios;
            case "traced":
                scenarios.put("traced", new Traced(session)::run);
                return scenarios;
            case "resume":
                scenarios.put("resume", new Resuming(session)::afterRestart);
                return scenarios;
            default:
                throw new IllegalArgumentException(command);
        }
    }

    static boolean run(Map<String, Scenario> scenarios) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(AT_ONCE);
        List<Future<Boolean>> results = new ArrayList<>();
        scenarios.forEach((name, scenario) -> results.add(pool.submit(() -> run(name, scenario))));
        pool.shutdown();
        if (!pool.awaitTermination(LIMIT_S, TimeUnit.SECONDS)) {
            return false;
        }
        boolean passed = true;
        for (Future<Boolean> result : results) {
            passed &= result.get();
        }
        return passed;
    }

    private static boolean run(String name, Scenario scenario) {
        try {
            scenario.run();
            print("RESULT " + name + " ok");
            return true;
        } catch (Throwable error) {
            error.printStackTrace();
            print("RESULT " + name + " failed: " + String.valueOf(error).replace('\n', ' '));
            return false;
        }
    }

    /** One write for a whole line: other threads print too. */
    static void print(String line) {
        System.out.print(line + "\n");
        System.out.flush();
    }
}
