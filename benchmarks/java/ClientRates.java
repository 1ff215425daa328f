import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * What the Java client does on this machine: ClientRates NAMESRV TOPIC BODY_BYTES. It prints the names of its cells.
 * Each line of input is a cell and a number of seconds, each is answered with "rate" and messages a second.
 */
public class ClientRates {
    private static final int IN_FLIGHT = 256;
    private static final int BATCH = 32;

    private interface Step {
        int run() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        byte[] body = new byte[Integer.parseInt(arguments[2])];
        DefaultMQProducer producer = new DefaultMQProducer("java-rates");
        producer.setNamesrvAddr(arguments[0]);
        producer.setSendMsgTimeout(30000);
        producer.start();
        Semaphore window = new Semaphore(IN_FLIGHT);
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                window.release();
            }

            @Override
            public void onException(Throwable error) {
                error.printStackTrace();
                System.exit(1);
            }
        };
        Map<String, Step> cells = new LinkedHashMap<>();
        cells.put("one_in_flight", () -> {
            producer.send(new Message(topic, body));
            return 1;
        });
        cells.put("many_in_flight", () -> {
            window.acquire();
            producer.send(new Message(topic, body), callback);
            return 1;
        });
        cells.put("batch", () -> {
            List<Message> messages = new ArrayList<>(BATCH);
            for (int i = 0; i < BATCH; i++) {
                messages.add(new Message(topic, body));
            }
            producer.send(messages);
            return BATCH;
        });
        System.out.println("cells " + String.join(" ", cells.keySet()));
        System.out.flush();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            System.out.println("rate " + run(cells.get(words[0]), Double.parseDouble(words[1])));
            System.out.flush();
            window.acquire(IN_FLIGHT);
            window.release(IN_FLIGHT);
        }
        producer.shutdown();
        System.exit(0);
    }

    private static double run(Step step, double seconds) throws Exception {
        long started = System.nanoTime();
        long end = started + (long) (seconds * 1e9);
        long count = 0;
        while (System.nanoTime() < end) {
            count += step.run();
        }
        return count / ((System.nanoTime() - started) / 1e9);
    }
}
