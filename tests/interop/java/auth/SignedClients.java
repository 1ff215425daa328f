import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Stock clients with credentials. Prints a line for each step, "ok" or what went wrong.
 *
 * <pre>
 * SignedClients NAMESRV ACCESS_KEY SECRET_KEY TOPIC GROUP OTHER_TOPIC
 * </pre>
 */
public class SignedClients {
    private static String namesrv;
    private static String topic;
    private static String group;
    private static AclClientRPCHook hook;

    private interface Step {
        void run() throws Exception;
    }

    public static void main(String[] args) {
        namesrv = args[0];
        hook = new AclClientRPCHook(new SessionCredentials(args[1], args[2]));
        topic = args[3];
        group = args[4];
        step("send", () -> send(topic));
        step("batch", SignedClients::batch);
        step("transaction", SignedClients::transaction);
        step("push", SignedClients::push);
        step("lite", SignedClients::lite);
        step("other", () -> send(args[5]));
        hook = new AclClientRPCHook(new SessionCredentials(args[1], "wrong" + args[2]));
        step("wrong", () -> send(topic));
        System.exit(0);
    }

    private static void step(String name, Step step) {
        String result = "ok";
        try {
            step.run();
        } catch (Throwable error) {
            result = String.valueOf(error).replace('\n', ' ');
            if (error.getCause() != null) {
                result += " | " + String.valueOf(error.getCause()).replace('\n', ' ');
            }
        }
        System.out.println("STEP " + name + " " + result);
    }

    private static DefaultMQProducer producer() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("SignedProducers", hook);
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName("p" + System.nanoTime());
        producer.setSendMsgTimeout(20_000);
        producer.start();
        return producer;
    }

    private static Message message(String to, String body) {
        return new Message(to, "tag", "key-" + body, body.getBytes(StandardCharsets.UTF_8));
    }

    private static void send(String to) throws Exception {
        DefaultMQProducer producer = producer();
        try {
            for (int number = 0; number < 10; number++) {
                producer.send(message(to, "single-" + number));
            }
        } finally {
            producer.shutdown();
        }
    }

    private static void batch() throws Exception {
        DefaultMQProducer producer = producer();
        try {
            List<Message> messages = new ArrayList<>();
            for (int number = 0; number < 3; number++) {
                messages.add(message(topic, "batch-" + number));
            }
            producer.send(messages);
        } finally {
            producer.shutdown();
        }
    }

    private static void transaction() throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer("SignedTransactions", hook);
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName("t" + System.nanoTime());
        producer.setSendMsgTimeout(20_000);
        producer.setTransactionListener(
            new TransactionListener() {
                @Override
                public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                    return LocalTransactionState.COMMIT_MESSAGE;
                }

                @Override
                public LocalTransactionState checkLocalTransaction(MessageExt message) {
                    return LocalTransactionState.COMMIT_MESSAGE;
                }
            });
        producer.start();
        try {
            producer.sendMessageInTransaction(message(topic, "transaction-0"), null);
        } finally {
            producer.shutdown();
        }
    }

    private static void push() throws Exception {
        Set<String> received = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer(group, hook, new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("c" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(
            (MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt message : messages) {
                    received.add(new String(message.getBody(), StandardCharsets.UTF_8));
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        consumer.start();
        try {
            await(received, 14);
        } finally {
            consumer.shutdown();
        }
    }

    private static void lite() throws Exception {
        Set<String> received = new HashSet<>();
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group + "Lite", hook);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("l" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.start();
        try {
            long end = System.currentTimeMillis() + 60_000;
            while (received.size() < 14 && System.currentTimeMillis() < end) {
                for (MessageExt message : consumer.poll(1000)) {
                    received.add(new String(message.getBody(), StandardCharsets.UTF_8));
                }
            }
            await(received, 14);
        } finally {
            consumer.shutdown();
        }
    }

    private static void await(Set<String> received, int count) throws Exception {
        long end = System.currentTimeMillis() + 60_000;
        while (received.size() < count) {
            if (System.currentTimeMillis() > end) {
                throw new IllegalStateException("received only " + received);
            }
            Thread.sleep(20);
        }
    }
}
