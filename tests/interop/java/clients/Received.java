import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.message.MessageExt;

/** What a consumer was given, in the order in which it came. */
final class Received implements MessageListenerConcurrently {
    private final List<MessageExt> messages = new ArrayList<>();

    public ConsumeConcurrentlyStatus consumeMessage(List<MessageExt> batch, ConsumeConcurrentlyContext context) {
        add(batch);
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }

    synchronized void add(List<MessageExt> batch) {
        messages.addAll(batch);
    }

    synchronized List<MessageExt> all() {
        return new ArrayList<>(messages);
    }

    synchronized int size() {
        return messages.size();
    }

    static String body(MessageExt message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    List<String> bodies() {
        return all().stream().map(Received::body).collect(Collectors.toList());
    }

    Set<Integer> queues() {
        return all().stream().map(MessageExt::getQueueId).collect(Collectors.toCollection(TreeSet::new));
    }

    Map<String, MessageExt> byBody() {
        Map<String, MessageExt> found = new TreeMap<>();
        all().forEach(message -> found.put(body(message), message));
        return found;
    }

    /** Wait for all of these; fail if anything else came, or anything twice. */
    Map<String, MessageExt> exactly(Set<String> expected) throws Exception {
        Session.await(
            () -> expected.size() + " messages, have " + size(), Session.WAIT_MS, () -> size() >= expected.size());
        Session.equal(new TreeSet<>(bodies()), new TreeSet<>(expected), "received");
        Session.equal(size(), expected.size(), "number of deliveries");
        return byBody();
    }

    /** Wait until each of these came at least once; fail if anything else came. */
    void atLeast(Set<String> expected) throws Exception {
        Session.await(
            () -> missing(expected) + " of " + expected.size(), Session.WAIT_MS,
            () -> missing(expected).isEmpty());
        Session.equal(new TreeSet<>(bodies()), new TreeSet<>(expected), "received");
    }

    private Set<String> missing(Set<String> expected) {
        Set<String> missing = new TreeSet<>(expected);
        missing.removeAll(bodies());
        return missing;
    }
}
