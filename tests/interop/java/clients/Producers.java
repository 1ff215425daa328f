import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;

/** Every way to send, each read back by a push consumer. */
final class Producers {
    static final int COUNT = 40;
    static final int THREADS = 24;
    static final int EACH = 25;
    static final int MESSAGE_ILLEGAL = 13;

    private final Session session;

    Producers(Session session) {
        this.session = session;
    }

    void addTo(Map<String, ClientsDriver.Scenario> scenarios) {
        scenarios.put("send_sync", this::sync);
        scenarios.put("send_async", this::async);
        scenarios.put("send_oneway", this::oneway);
        scenarios.put("send_batch", this::batch);
        scenarios.put("send_to_new_topic", this::newTopic);
        scenarios.put("send_on_fast_port", this::fastPort);
        scenarios.put("send_large_and_too_large", this::sizes);
        scenarios.put("send_from_many_threads", this::manyThreads);
    }

    /** A consumer that is reading a topic already, its group named like the topic. */
    private Received reading(String what, String topic) throws Exception {
        Received received = new Received();
        DefaultMQPushConsumer consumer = session.push(what);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(received);
        consumer.start();
        return received;
    }

    private void sync() throws Exception {
        String topic = session.topic("Sync");
        Received received = reading("Sync", topic);
        DefaultMQProducer producer = session.producer("Sync");
        Map<String, SendResult> acknowledged = new TreeMap<>();
        for (int i = 0; i < COUNT; i++) {
            Message message = Session.message(topic, "Tag" + i % 3, "sync-" + i + " ü 消息");
            message.setFlag(i);
            message.putUserProperty("number", "value " + i);
            acknowledged.put(new String(message.getBody(), StandardCharsets.UTF_8), Session.sent(producer.send(message)));
        }
        Map<String, MessageExt> found = received.exactly(acknowledged.keySet());
        Map<Integer, TreeSet<Long>> offsets = new TreeMap<>();
        acknowledged.forEach((body, result) -> {
            MessageExt message = found.get(body);
            int number = message.getFlag();
            Session.equal(message.getMsgId(), result.getMsgId(), "unique id");
            Session.equal(((MessageClientExt) message).getOffsetMsgId(), result.getOffsetMsgId(), "offset id");
            Session.equal(message.getQueueId(), result.getMessageQueue().getQueueId(), "queue");
            Session.equal(message.getQueueOffset(), result.getQueueOffset(), "queue offset");
            Session.equal(message.getTopic(), topic, "topic");
            Session.equal(message.getTags(), "Tag" + number % 3, "tag");
            Session.equal(message.getKeys(), "key-" + body, "keys");
            Session.equal(message.getUserProperty("number"), "value " + number, "property");
            Session.equal(message.getReconsumeTimes(), 0, "reconsume times");
            Session.check(message.getStoreTimestamp() >= message.getBornTimestamp(), "stored before it was born");
            Session.equal(message.getStoreHost().toString(), "/" + session.brokerAddress, "store host");
            offsets.computeIfAbsent(message.getQueueId(), queue -> new TreeSet<>()).add(message.getQueueOffset());
        });
        Session.equal(offsets.size(), Session.QUEUES, "queues used");
        offsets.forEach((queue, there) -> {
            Session.equal(there.first(), 0L, "first offset of queue " + queue);
            Session.equal(there.last(), there.size() - 1L, "last offset of queue " + queue);
        });
    }

    private void async() throws Exception {
        String topic = session.topic("Async");
        Received received = reading("Async", topic);
        DefaultMQProducer producer = session.producer("Async");
        Map<String, Object> outcomes = new ConcurrentHashMap<>();
        CountDownLatch answers = new CountDownLatch(COUNT);
        for (int i = 0; i < COUNT; i++) {
            String body = "async-" + i;
            producer.send(Session.message(topic, "A", body), new SendCallback() {
                public void onSuccess(SendResult result) {
                    outcomes.put(body, result);
                    answers.countDown();
                }

                public void onException(Throwable error) {
                    outcomes.put(body, error);
                    answers.countDown();
                }
            });
        }
        Session.check(answers.await(Session.WAIT_MS, TimeUnit.MILLISECONDS), "answers missing: " + outcomes.size());
        Map<String, MessageExt> found = received.exactly(outcomes.keySet());
        outcomes.forEach((body, outcome) -> {
            Session.check(outcome instanceof SendResult, body + ": " + outcome);
            SendResult result = Session.sent((SendResult) outcome);
            Session.equal(found.get(body).getMsgId(), result.getMsgId(), "unique id");
            Session.equal(found.get(body).getQueueOffset(), result.getQueueOffset(), "queue offset");
        });
    }

    private void oneway() throws Exception {
        String topic = session.topic("Oneway");
        Received received = reading("Oneway", topic);
        DefaultMQProducer producer = session.producer("Oneway");
        TreeSet<String> bodies = new TreeSet<>();
        for (int i = 0; i < COUNT; i++) {
            bodies.add("oneway-" + i);
            producer.sendOneway(Session.message(topic, "A", "oneway-" + i));
        }
        received.exactly(bodies);
    }

    private void batch() throws Exception {
        String topic = session.topic("Batch");
        Received received = reading("Batch", topic);
        DefaultMQProducer producer = session.producer("Batch");
        List<Message> batch = new ArrayList<>();
        TreeSet<String> bodies = new TreeSet<>();
        for (int i = 0; i < COUNT; i++) {
            batch.add(Session.message(topic, "A", "batch-" + i));
            bodies.add("batch-" + i);
        }
        SendResult result = Session.sent(producer.send(batch));
        Map<String, MessageExt> found = received.exactly(bodies);
        List<String> uniqueIds = Arrays.asList(result.getMsgId().split(","));
        // A client of 5.3 gives the batch an id too; brokers before 5.5 append it to the properties of each message,
        // and the last id counts.
        String version = session.admin.fetchBrokerRuntimeStats(session.brokerAddress).getTable().get("brokerVersionDesc");
        String batchId = version.compareTo("V5_5") < 0 ? result.getTransactionId() : null;
        List<String> offsetIds = Arrays.asList(result.getOffsetMsgId().split(","));
        for (int i = 0; i < COUNT; i++) {
            MessageExt message = found.get("batch-" + i);
            Session.equal(message.getMsgId(), batchId == null ? uniqueIds.get(i) : batchId, "unique id");
            Session.equal(((MessageClientExt) message).getOffsetMsgId(), offsetIds.get(i), "offset id");
            Session.equal(message.getQueueId(), result.getMessageQueue().getQueueId(), "queue");
            Session.equal(message.getQueueOffset(), result.getQueueOffset() + i, "queue offset");
        }
    }

    /** A topic that nobody made takes its shape from the template topic. */
    private void newTopic() throws Exception {
        String topic = session.named("Unheard");
        DefaultMQProducer producer = session.producer("Unheard");
        Session.sent(producer.send(Session.message(topic, "A", "first")));
        Session.await("a route to " + topic, () -> session.hasRoute(topic));
        var queues = session.admin.examineTopicRouteInfo(topic).getQueueDatas().get(0);
        Session.equal(queues.getWriteQueueNums(), producer.getDefaultTopicQueueNums(), "queues");
        Session.equal(queues.getPerm(), 6, "permission");
        reading("Unheard", topic).exactly(new TreeSet<>(List.of("first")));
    }

    private void fastPort() throws Exception {
        String topic = session.topic("Fast");
        Received received = new Received();
        DefaultMQPushConsumer consumer = session.push("Fast");
        consumer.setVipChannelEnabled(true);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(received);
        consumer.start();
        DefaultMQProducer producer = new DefaultMQProducer(session.named("Fast"));
        producer.setVipChannelEnabled(true);
        producer.setRetryTimesWhenSendFailed(0);
        session.started(producer);
        TreeSet<String> bodies = new TreeSet<>();
        for (int i = 0; i < 8; i++) {
            bodies.add("fast-" + i);
            Session.sent(producer.send(Session.message(topic, "A", "fast-" + i)));
        }
        received.exactly(bodies);
        consumer.shutdown();
        session.awaitNoLag(session.named("Fast"), topic);
    }

    /** Bodies that the client compresses arrive as they were; what exceeds the broker's limit is refused. */
    private void sizes() throws Exception {
        String topic = session.topic("Sizes");
        Received received = reading("Sizes", topic);
        DefaultMQProducer producer = new DefaultMQProducer(session.named("Sizes"));
        producer.setMaxMessageSize(8 << 20);
        producer.setCompressMsgBodyOverHowmuch(4096);
        producer.setRetryTimesWhenSendFailed(0);
        session.started(producer);
        TreeSet<String> bodies = new TreeSet<>();
        for (int size : new int[] {1, 4095, 4096, 300_000}) {
            String body = ("size " + size + " ").repeat(size).substring(0, size);
            bodies.add(body);
            Session.sent(producer.send(new Message(topic, body.getBytes(StandardCharsets.UTF_8))));
        }
        received.exactly(bodies);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        try {
            producer.send(new Message(topic, new byte[5 << 20]));
            throw new IllegalStateException("5 MiB were accepted");
        } catch (MQBrokerException refused) {
            Session.equal(refused.getResponseCode(), MESSAGE_ILLEGAL, "code");
        }
        Session.equal(session.messageCount(topic), 4L, "messages in the topic");
    }

    private void manyThreads() throws Exception {
        String topic = session.topic("Threads");
        Received received = reading("Threads", topic);
        DefaultMQProducer producer = session.producer("Threads");
        ExecutorService pool = Executors.newFixedThreadPool(THREADS);
        List<Future<?>> senders = new ArrayList<>();
        TreeSet<String> bodies = new TreeSet<>();
        TreeSet<String> places = new TreeSet<>();
        for (int thread = 0; thread < THREADS; thread++) {
            String prefix = "thread-" + thread + "-";
            for (int i = 0; i < EACH; i++) {
                bodies.add(prefix + i);
            }
            senders.add(pool.submit(() -> {
                for (int i = 0; i < EACH; i++) {
                    SendResult result = Session.sent(producer.send(Session.message(topic, "A", prefix + i)));
                    synchronized (places) {
                        places.add(result.getMessageQueue().getQueueId() + "@" + result.getQueueOffset());
                    }
                }
                return null;
            }));
        }
        for (Future<?> sender : senders) {
            sender.get(Session.WAIT_MS, TimeUnit.MILLISECONDS);
        }
        pool.shutdown();
        Session.equal(places.size(), THREADS * EACH, "places of messages");
        received.exactly(bodies);
    }
}
