import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;

/** SQL92 filters, transactions, timed messages, requests with replies. The broker asks about transactions after a second. */
final class Delivery {
    static final int TRANSACTIONS = 30;
    static final int REQUESTS = 10;
    static final int TIMED = 10;
    // From the end of a slot to the consumer's hands, on a busy machine, and the slot itself.
    static final long LATE_MS = 30_000;
    static final long REPLY_TIMEOUT_MS = 50_000;
    // The client of 5.3.3 does not wait for the reply of a synchronous request once its send is acknowledged.
    static final boolean GIVES_UP_EARLY = MQVersion.CURRENT_VERSION == 479;

    private final Session session;

    Delivery(Session session) {
        this.session = session;
    }

    void addTo(Map<String, ClientsDriver.Scenario> scenarios) {
        scenarios.put("transactions", this::transactions);
        scenarios.put("request_reply", this::requestReply);
        scenarios.put("timed", this::timed);
        scenarios.put("sql_filter", this::sqlFilter);
        scenarios.put("sql_refused", this::sqlRefused);
    }

    private void sqlFilter() throws Exception {
        String topic = session.topic("Sql");
        Received received = new Received();
        DefaultMQPushConsumer consumer = session.push("Sql");
        consumer.subscribe(topic, MessageSelector.bySql("a > 5 AND region = 'eu' OR note CONTAINS 'x' AND TAGS = 'B'"));
        consumer.registerMessageListener(received);
        consumer.start();
        DefaultMQProducer producer = session.producer("Sql");
        Set<String> wanted = new TreeSet<>();
        for (int i = 0; i < 60; i++) {
            String body = "sql-" + i;
            Message message = Session.message(topic, i % 3 == 0 ? "B" : "A", body);
            message.putUserProperty("a", String.valueOf(i % 10));
            message.putUserProperty("region", i % 2 == 0 ? "eu" : "us");
            if (i % 5 == 0) {
                message.putUserProperty("note", "axb");
            }
            Session.sent(producer.send(message));
            if (i % 10 > 5 && i % 2 == 0 || i % 5 == 0 && i % 3 == 0) {
                wanted.add(body);
            }
        }
        received.exactly(wanted);
        consumer.shutdown();
    }

    private void sqlRefused() throws Exception {
        DefaultMQPushConsumer consumer = session.push("SqlBad");
        consumer.subscribe(session.topic("SqlBad"), MessageSelector.bySql("a = 1 AND !"));
        consumer.registerMessageListener(new Received());
        try {
            consumer.start();
        } catch (MQClientException refused) {
            Session.check(refused.getResponseCode() == 23, "code " + refused.getResponseCode());
            return;
        } finally {
            consumer.shutdown();
        }
        throw new IllegalStateException("a bad expression was taken");
    }

    /** A third is committed at once, a third rolled back; of the others the broker must ask. */
    private void transactions() throws Exception {
        String topic = session.topic("Tx");
        Received received = new Received();
        DefaultMQPushConsumer consumer = session.push("Tx");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(received);
        consumer.start();
        Map<String, AtomicInteger> asked = new ConcurrentHashMap<>();
        TransactionMQProducer producer = new TransactionMQProducer(session.named("Tx"));
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object number) {
                switch ((Integer) number % 3) {
                    case 0:
                        return LocalTransactionState.COMMIT_MESSAGE;
                    case 1:
                        return LocalTransactionState.ROLLBACK_MESSAGE;
                    default:
                        return LocalTransactionState.UNKNOW;
                }
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                String body = Received.body(message);
                int times = asked.computeIfAbsent(body, key -> new AtomicInteger()).incrementAndGet();
                // Half of them are not known yet when they are asked about for the first time.
                boolean even = Integer.parseInt(body.substring(3)) % 2 == 0;
                if (even && times == 1) {
                    return LocalTransactionState.UNKNOW;
                }
                return even ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
            }
        });
        session.started(producer);
        Set<String> wanted = new TreeSet<>();
        for (int i = 0; i < TRANSACTIONS; i++) {
            String body = "tx-" + i;
            producer.sendMessageInTransaction(Session.message(topic, "A", body), i);
            if (i % 3 == 0 || i % 3 == 2 && i % 2 == 0) {
                wanted.add(body);
            }
        }
        Map<String, MessageExt> found = received.exactly(wanted);
        found.values().forEach(message -> Session.equal(message.getTopic(), topic, "topic"));
        Session.await("all questions", () -> asked.size() == TRANSACTIONS / 3);
        Thread.sleep(2000);
        received.exactly(wanted);
        producer.shutdown();
        consumer.shutdown();
    }

    /** Each message comes at its time, or up to the broker's precision later; one is taken back, where clients can. */
    private void timed() throws Exception {
        String topic = session.topic("Timed");
        Received received = new Received();
        Map<String, Long> arrived = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = session.push("Timed");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            batch.forEach(message -> arrived.put(Received.body(message), System.currentTimeMillis()));
            return received.consumeMessage(batch, context);
        });
        consumer.start();
        DefaultMQProducer producer = session.producer("Timed");
        Map<String, Long> due = new ConcurrentHashMap<>();
        for (int i = 0; i < TIMED; i++) {
            String body = "timed-" + i;
            Message message = Session.message(topic, "A", body);
            long at = System.currentTimeMillis() + 2000 + 300L * i;
            MessageAccessor.putProperty(message, "TIMER_DELIVER_MS", String.valueOf(at));
            SendResult result = Session.sent(producer.send(message));
            if (i == 1 && recall(producer, topic, result)) {
                continue;
            }
            due.put(body, at);
        }
        received.exactly(new TreeSet<>(due.keySet()));
        due.forEach((body, at) -> {
            long late = arrived.get(body) - at;
            Session.check(late >= 0 && late < LATE_MS, body + " came " + late + " ms after its time");
        });
        consumer.shutdown();
    }

    /** Only newer clients know how to; false from others. */
    private static boolean recall(DefaultMQProducer producer, String topic, SendResult result) throws Exception {
        try {
            Object handle = SendResult.class.getMethod("getRecallHandle").invoke(result);
            Session.check(handle != null, "no recall handle");
            producer.getClass().getMethod("recallMessage", String.class, String.class).invoke(producer, topic, handle);
            return true;
        } catch (NoSuchMethodException older) {
            return false;
        }
    }

    private void requestReply() throws Exception {
        String topic = session.topic("Request");
        DefaultMQProducer answering = session.producer("Answer");
        DefaultMQPushConsumer consumer = session.push("Request");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            for (MessageExt request : batch) {
                if (request.getTags().equals("silent")) {
                    continue;
                }
                try {
                    byte[] body = ("reply to " + Received.body(request)).getBytes(StandardCharsets.UTF_8);
                    Session.sent(answering.send(MessageUtil.createReplyMessage(request, body), Session.SEND_TIMEOUT_MS));
                } catch (Exception error) {
                    error.printStackTrace();
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer asking = session.producer("Ask");
        List<Object> outcomes = new ArrayList<>();
        for (int i = 0; i < REQUESTS; i++) {
            String body = "request-" + i;
            if (i % 2 == 0 && !GIVES_UP_EARLY) {
                Message reply = asking.request(Session.message(topic, "A", body), REPLY_TIMEOUT_MS);
                Session.equal(new String(reply.getBody(), StandardCharsets.UTF_8), "reply to " + body, "reply");
                continue;
            }
            asking.request(Session.message(topic, "A", body), new RequestCallback() {
                @Override
                public void onSuccess(Message reply) {
                    synchronized (outcomes) {
                        outcomes.add(new String(reply.getBody(), StandardCharsets.UTF_8));
                    }
                }

                @Override
                public void onException(Throwable error) {
                    synchronized (outcomes) {
                        outcomes.add(error);
                    }
                }
            }, REPLY_TIMEOUT_MS);
        }
        Session.await("replies", () -> outcomes.size() == (GIVES_UP_EARLY ? REQUESTS : REQUESTS / 2));
        for (int i = 1; i < REQUESTS; i += 2) {
            Session.check(outcomes.contains("reply to request-" + i), "replies: " + outcomes);
        }
        try {
            asking.request(Session.message(topic, "silent", "nobody answers"), 5000);
            throw new IllegalStateException("a request without a reply ended well");
        } catch (RequestTimeoutException expected) {
            // as it should be
        }
        consumer.shutdown();
    }
}
