import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Arrays;

/**
 * Drives stock 5.3.3 clients for the store interchange tests: one command per JVM, one JSON document as result.
 *
 * <pre>
 * StoreDriver fill  NAMESRV RESULT SEED COUNT   sends every kind of message a stock client can send
 * StoreDriver burst NAMESRV RESULT SEED         sends until the broker is gone, for crash tests
 * StoreDriver batches NAMESRV RESULT TOPIC FIRST BATCHES SIZE FROM   sends batches, pulls from an offset, and pushes
 * StoreDriver dump  NAMESRV RESULT [ID...]      reads every queue, and the messages with these offset ids
 * </pre>
 */
public class StoreDriver {
    public static void main(String[] args) throws Exception {
        int code = 1;
        try {
            JSONObject result = run(args[0], args[1], Arrays.copyOfRange(args, 3, args.length));
            write(Path.of(args[2]), result);
            code = 0;
        } catch (Throwable error) {
            error.printStackTrace();
        }
        // Clients are not shut down: that takes seconds, and their threads would keep the JVM alive.
        System.exit(code);
    }

    private static JSONObject run(String command, String nameServer, String[] rest) throws Exception {
        switch (command) {
            case "fill":
                return new Fill(nameServer, Long.parseLong(rest[0])).run(Integer.parseInt(rest[1]));
            case "burst":
                return new Burst(nameServer, Long.parseLong(rest[0])).run();
            case "batches":
                return new Batches(nameServer, rest[0]).run(
                    Integer.parseInt(rest[1]), Integer.parseInt(rest[2]), Integer.parseInt(rest[3]),
                    Long.parseLong(rest[4]));
            case "dump":
                return new Dump(nameServer).run(rest);
            default:
                throw new IllegalArgumentException(command);
        }
    }

    private static void write(Path path, JSONObject result) throws Exception {
        String text = JSON.toJSONString(
            result, SerializerFeature.DisableCircularReferenceDetect, SerializerFeature.WriteMapNullValue);
        Path partial = path.resolveSibling(path.getFileName() + ".tmp");
        Files.write(partial, text.getBytes(StandardCharsets.UTF_8));
        Files.move(partial, path, StandardCopyOption.ATOMIC_MOVE);
    }
}
