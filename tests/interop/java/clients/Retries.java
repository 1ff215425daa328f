import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;

/** Delay levels, retries, dead letters. The broker's levels are 1 s, 2 s, and 1 s for all further ones. */
final class Retries {
    static final int RETRIES = 2;
    static final long[] LEVELS_MS = {1000, 2000};
    // From the broker's delivery to the consumer's hands, on a busy machine.
    static final long LATE_MS = 30_000;

    private final Session session;

    Retries(Session session) {
        this.session = session;
    }

    void addTo(Map<String, ClientsDriver.Scenario> scenarios) {
        scenarios.put("retry_to_dead_letters", this::deadLetters);
        scenarios.put("delay_levels", this::delayLevels);
    }

    /** One message succeeds at once, one at its last retry, one never. */
    private void deadLetters() throws Exception {
        String topic = session.topic("Retry");
        String group = session.named("Retry");
        Map<String, List<MessageExt>> attempts = new ConcurrentHashMap<>();
        MessageListenerConcurrently listener = (batch, context) -> {
            MessageExt message = batch.get(0);
            String body = Received.body(message);
            attempts.computeIfAbsent(body, key -> new ArrayList<>()).add(message);
            boolean done = body.equals("good") || body.equals("late") && message.getReconsumeTimes() == RETRIES;
            return done ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        };
        // The broker makes the group's retry topic at the first heartbeat; a consumer that has looked for it before
        // looks again after 20 s, so one that does not matter goes ahead.
        reading(topic, listener).shutdown();
        Session.await("the retry topic", () -> session.hasRoute(MixAll.getRetryTopic(group)));
        DefaultMQPushConsumer consumer = reading(topic, listener);
        DefaultMQProducer producer = session.producer("Retry");
        Map<String, String> ids = new TreeMap<>();
        for (String body : new String[] {"good", "late", "bad"}) {
            ids.put(body, Session.sent(producer.send(Session.message(topic, "A", body))).getMsgId());
        }
        Received dead = deadLettersOf(group);
        MessageExt letter = dead.exactly(Set.of("bad")).get("bad");
        Session.await("the last retry", () -> attempts.get("late").size() == RETRIES + 1);
        Session.equal(attempts.get("good").size(), 1, "attempts of the good one");
        for (String body : new String[] {"late", "bad"}) {
            for (int i = 0; i <= RETRIES; i++) {
                MessageExt message = attempts.get(body).get(i);
                Session.equal(message.getReconsumeTimes(), i, "reconsume times");
                Session.equal(message.getTopic(), topic, "topic that the listener sees");
                Session.equal(message.getMsgId(), ids.get(body), "unique id");
                Session.equal(message.getKeys(), "key-" + body, "keys");
            }
        }
        Session.equal(attempts.get("bad").size(), RETRIES + 1, "attempts of the bad one");
        Session.equal(letter.getTopic(), MixAll.getDLQTopic(group), "topic of the dead letter");
        Session.equal(letter.getProperty(MessageConst.PROPERTY_RETRY_TOPIC), topic, "topic it came from");
        Session.equal(letter.getMsgId(), ids.get("bad"), "unique id of the dead letter");
        Session.check(letter.getProperty(MessageConst.PROPERTY_ORIGIN_MESSAGE_ID) != null, "no original id");
        consumer.shutdown();
        session.awaitNoLag(group, topic);
        session.awaitNoLag(group, MixAll.getRetryTopic(group));
    }

    private DefaultMQPushConsumer reading(String topic, MessageListenerConcurrently listener) throws Exception {
        DefaultMQPushConsumer consumer = session.push("Retry");
        consumer.setMaxReconsumeTimes(RETRIES);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(listener);
        consumer.start();
        return consumer;
    }

    /** A reader of the dead letters of a group, started when there are some. */
    private Received deadLettersOf(String group) throws Exception {
        Session.await("dead letters", () -> session.hasRoute(MixAll.getDLQTopic(group)));
        Received dead = new Received();
        DefaultMQPushConsumer consumer = session.push("RetryDead");
        consumer.subscribe(MixAll.getDLQTopic(group), "*");
        consumer.registerMessageListener(dead);
        consumer.start();
        return dead;
    }

    private void delayLevels() throws Exception {
        String topic = session.topic("Delay");
        Received received = new Received();
        Map<String, Long> arrived = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = session.push("Delay");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            batch.forEach(message -> arrived.put(Received.body(message), System.currentTimeMillis()));
            return received.consumeMessage(batch, context);
        });
        consumer.start();
        DefaultMQProducer producer = session.producer("Delay");
        Map<String, Long> asked = new TreeMap<>();
        Map<String, Integer> levels = new TreeMap<>();
        for (int i = 0; i < 10; i++) {
            Message message = Session.message(topic, "A", "delay-" + i);
            int level = 1 + i % LEVELS_MS.length;
            message.setDelayTimeLevel(level);
            levels.put("delay-" + i, level);
            asked.put("delay-" + i, System.currentTimeMillis() + LEVELS_MS[level - 1]);
            Session.sent(producer.send(message));
        }
        Map<String, MessageExt> found = received.exactly(new TreeSet<>(asked.keySet()));
        asked.forEach((body, due) -> {
            long late = arrived.get(body) - due;
            Session.check(late >= 0 && late < LATE_MS, body + " came " + late + " ms after its time");
            Session.equal(found.get(body).getTopic(), topic, "topic");
            Session.equal(found.get(body).getDelayTimeLevel(), levels.get(body), "delay level");
            Session.equal(found.get(body).getKeys(), "key-" + body, "keys");
        });
    }
}
