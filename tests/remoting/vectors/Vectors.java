import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.acl.common.AclUtils;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.protocol.LanguageCode;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.SerializeType;

/**
 * Prints what RocketMQ's own library makes of frames, messages, batches, ids and signatures, a JSON object a line:
 * what went in, and the bytes that came out. tests/unit/vectors/remoting.jsonl has the lines of two versions:
 *
 *     mvn -q dependency:copy-dependencies -DoutputDirectory=target/4.9.8
 *     mvn -q dependency:copy-dependencies -DoutputDirectory=target/5.5.0 -Drocketmq.version=5.5.0
 *     for version in 4.9.8 5.5.0; do
 *         java -cp "target/$version/*" Vectors.java $version
 *     done > ../../unit/vectors/remoting.jsonl
 */
public class Vectors {
    static String release;

    public static void main(String[] arguments) throws Exception {
        release = arguments[0];
        codes("RequestCode", "org.apache.rocketmq.common.protocol", "org.apache.rocketmq.remoting.protocol");
        codes("ResponseCode", "org.apache.rocketmq.common.protocol", "org.apache.rocketmq.remoting.protocol");
        codes("ClientErrorCode", "org.apache.rocketmq.client.common");
        languages();
        for (SerializeType type : SerializeType.values()) {
            frames(type);
        }
        messages();
        batches();
        properties();
        offsetIds();
        signatures();
    }

    // -- codes ---------------------------------------------------------------------------------------

    static void codes(String name, String... packages) throws Exception {
        Map<String, Object> codes = new TreeMap<>();
        for (Field field : anyOf(name, packages).getFields()) {
            if (Modifier.isStatic(field.getModifiers())) {
                codes.put(field.getName(), ((Number) field.get(null)).intValue());
            }
        }
        line("codes", name, "codes", codes);
    }

    static void languages() {
        Map<String, Object> codes = new LinkedHashMap<>();
        for (LanguageCode language : LanguageCode.values()) {
            codes.put(language.name(), (int) language.getCode());
        }
        line("codes", "LanguageCode", "codes", codes);
    }

    static Class<?> anyOf(String name, String... packages) throws ClassNotFoundException {
        for (String each : packages) {
            try {
                return Class.forName(each + "." + name);
            } catch (ClassNotFoundException error) {
                // another version has it elsewhere
            }
        }
        throw new ClassNotFoundException(name);
    }

    // -- frames --------------------------------------------------------------------------------------

    static void frames(SerializeType type) throws Exception {
        RemotingCommand send = RemotingCommand.createRequestCommand(310, sendHeader());
        send.setBody("x".repeat(100).getBytes(StandardCharsets.UTF_8));
        frame(type, "a send", send, 7, 409, LanguageCode.JAVA);

        RemotingCommand sent = RemotingCommand.createResponseCommand(0, null);
        sent.setExtFields(fields("msgId", "7F00000100002694000000000000002A", "queueId", "3", "queueOffset", "-1",
            "transactionId", "0A0000011F9000C0FFEE001122334455", "MSG_REGION", "DefaultRegion", "TRACE_ON", "true"));
        frame(type, "the answer of a send", sent, 7, 409, LanguageCode.PYTHON);

        frame(type, "a refusal with a remark",
            RemotingCommand.createResponseCommand(17, "topic \"Gr\u00fc\u00dfe \ud83d\ude80\"\n\tdoes not exist \\ \u4e2d"),
            Integer.MAX_VALUE, 479, LanguageCode.CPP);
        frame(type, "a refusal with an empty remark", RemotingCommand.createResponseCommand(1, ""), 1, 0,
            LanguageCode.GO);

        RemotingCommand commit = RemotingCommand.createRequestCommand(15, null);
        commit.setExtFields(fields("consumerGroup", "g", "topic", "orders", "queueId", "0", "commitOffset",
            String.valueOf(Long.MAX_VALUE)));
        commit.markOnewayRPC();
        frame(type, "a commit that nobody answers", commit, Integer.MIN_VALUE, 32767, LanguageCode.DOTNET);

        RemotingCommand heartbeat = RemotingCommand.createRequestCommand(34, null);
        heartbeat.setBody("{\"clientID\":\"10.0.0.1@1#2\"}".getBytes(StandardCharsets.UTF_8));
        frame(type, "a body and no fields", heartbeat, 0, 1, LanguageCode.OTHER);

        frame(type, "neither body nor fields", RemotingCommand.createRequestCommand(0, null), 1, 1, LanguageCode.HTTP);

        RemotingCommand odd = RemotingCommand.createRequestCommand(10, null);
        odd.setExtFields(fields("i", "TAGS\u0001A\u0002\u4e2d\u0001\ud83d\ude80\u0002", "empty", "", "null", "null",
            "quote", "\"\\/\b\f\n\r\t\u007f\u2028", "\u00fcml\u00e4ut", "\u00e9", "long", "y".repeat(300)));
        frame(type, "any characters", odd, -2, 2, LanguageCode.OMS);

        if (type == SerializeType.JSON) {
            frame(type, "a code of more than 16 bits", RemotingCommand.createRequestCommand(200050, null), 3, 479,
                LanguageCode.PHP);
        }
        for (LanguageCode language : LanguageCode.values()) {
            frame(type, "of " + language, RemotingCommand.createRequestCommand(34, null), 5, 5, language);
        }
    }

    static CommandCustomHeader sendHeader() throws Exception {
        Class<?> type = anyOf("SendMessageRequestHeaderV2", "org.apache.rocketmq.common.protocol.header",
            "org.apache.rocketmq.remoting.protocol.header");
        Object header = type.getDeclaredConstructor().newInstance();
        Object[] values = {"producers", "orders", "TBW102", 4, 3, 0, 1764172800123L, 0,
            "KEYS\u0001order-17\u0002UNIQ_KEY\u00010A0000011F9000C0FFEE001122334455\u0002WAIT\u0001true\u0002TAGS\u0001TagA",
            0, false, 16, false};
        for (int index = 0; index < values.length; index++) {
            String name = "set" + (char) ('A' + index);
            for (Method method : type.getMethods()) {
                if (method.getName().equals(name)) {
                    method.invoke(header, values[index]);
                }
            }
        }
        return (CommandCustomHeader) header;
    }

    static void frame(SerializeType type, String why, RemotingCommand command, int opaque, int version,
        LanguageCode language) {
        command.setOpaque(opaque);
        command.setVersion(version);
        command.setLanguage(language);
        command.setSerializeTypeCurrentRPC(type);
        ByteBuffer encoded = command.encode();
        byte[] bytes = new byte[encoded.remaining()];
        encoded.get(bytes);
        line("frame", why, "serializer", type.name(), "code", command.getCode(), "fields", command.getExtFields(),
            "body", command.getBody(), "opaque", opaque, "flag", command.getFlag(), "remark", command.getRemark(),
            "language", language.name(), "version", version, "bytes", bytes);
    }

    // -- messages ------------------------------------------------------------------------------------

    static void messages() throws Exception {
        Map<String, String> usual = fields("UNIQ_KEY", "0A0000011F9000C0FFEE001122334455", "TAGS", "TagA", "KEYS",
            "k1 k2", "color", "blue");
        message("an ordinary message", "orders", "hello".getBytes(StandardCharsets.UTF_8), 0, 0, 0, usual);
        message("retried, in any script", "%RETRY%gr\u00fc\u00dfe", "\ud83d\ude80".getBytes(StandardCharsets.UTF_8), 0, 5, 16,
            fields("UNIQ_KEY", "FE80000000000000ABCDEF0123456789000112345678ABCDEF0123456789", "\u4e2d", "\u00fc\ud83d\ude80",
                "RETRY_TOPIC", "orders"));
        byte[] compressed = UtilAll.compress("z".repeat(5000).getBytes(StandardCharsets.UTF_8), 5);
        message("compressed", "t".repeat(127), compressed, 1 | 3 << 8, -7, 0, usual);
        message("numbers at their ends", "orders", new byte[] {0, -1, 127, -128}, Integer.MAX_VALUE & ~(1 << 4 | 1 << 5),
            Integer.MIN_VALUE, Integer.MAX_VALUE, usual);
    }

    static void message(String why, String topic, byte[] body, int sysFlag, int flag, int reconsumeTimes,
        Map<String, String> properties) throws Exception {
        MessageExt message = new MessageExt();
        message.setTopic(topic);
        message.setBody(body);
        message.setBodyCRC(UtilAll.crc32(body));
        message.setQueueId(3);
        message.setFlag(flag);
        message.setQueueOffset(4_000_000_017L);
        message.setCommitLogOffset(9_000_000_000_042L);
        message.setSysFlag(sysFlag);
        message.setBornTimestamp(1764172800123L);
        message.setBornHost(new InetSocketAddress("10.1.2.3", 51234));
        message.setStoreTimestamp(1764172800456L);
        message.setStoreHost(new InetSocketAddress("192.168.250.1", 9876));
        message.setReconsumeTimes(reconsumeTimes);
        MessageAccessor.setProperties(message, properties);
        line("message", why, "topic", topic, "body", body, "queue_id", 3, "flag", flag, "queue_offset",
            message.getQueueOffset(), "log_pos", message.getCommitLogOffset(), "sys_flag", sysFlag, "born_ms",
            message.getBornTimestamp(), "born_host", "10.1.2.3:51234", "store_ms", message.getStoreTimestamp(),
            "store_host", "192.168.250.1", "store_port", 9876, "reconsume_times", reconsumeTimes, "properties",
            properties, "bytes", MessageDecoder.encode(message, false));
    }

    static void batches() {
        List<Message> messages = new ArrayList<>();
        List<Object> described = new ArrayList<>();
        for (String text : new String[] {"a", "", "Gr\u00fc\u00dfe \ud83d\ude80", "x".repeat(3000)}) {
            Message message = new Message("orders", text.getBytes(StandardCharsets.UTF_8));
            message.setFlag(-text.length());
            MessageAccessor.setProperties(message,
                text.isEmpty() ? new HashMap<>() : fields("UNIQ_KEY", text, "TAGS", "TagA", "WAIT", "true"));
            messages.add(message);
            described.add(object("flag", message.getFlag(), "body", message.getBody(), "properties",
                message.getProperties()));
        }
        line("batch", "four messages", "messages", described, "bytes", MessageDecoder.encodeMessages(messages));
    }

    static void properties() {
        String[] texts = {"", "a\u0001b\u0002", "a\u0001b", "a\u0001b\u0002c\u0001d", "\u0002\u0002a\u0001b\u0002\u0002", "a", "a\u0001", "\u0001b",
            "a\u0001b\u0001c\u0002d\u0001e\u0002", "a\u0001b\u0002a\u0001c\u0002", " \u0001 \u0002", "\u4e2d\u0001\ud83d\ude80\u0002", "\u0001\u0001\u0002x\u0001y\u0002"};
        for (String text : texts) {
            line("properties", text, "properties", MessageDecoder.string2messageProperties(text));
        }
    }

    // -- ids and signatures --------------------------------------------------------------------------

    static void offsetIds() {
        Object[][] cases = {{"127.0.0.1", 9876, 0L}, {"192.168.250.1", 65535, Long.MAX_VALUE}, {"0.0.0.0", 0, 42L}};
        for (Object[] each : cases) {
            InetSocketAddress address = new InetSocketAddress((String) each[0], (Integer) each[1]);
            line("offset_id", (String) each[0], "port", each[1], "log_pos", each[2], "text",
                MessageDecoder.createMessageId(address, (Long) each[2]));
        }
    }

    static void signatures() {
        signature("a send", "12345678", fields("AccessKey", "rocketmq", "a", "producers", "b", "orders", "i",
            "TAGS\u0001A\u0002", "SecurityToken", "token"), "hello".getBytes(StandardCharsets.UTF_8));
        signature("no body", "12345678", fields("AccessKey", "rocketmq", "topic", "orders"), null);
        signature("any script", "geh\u00e4im \ud83d\ude80", fields("AccessKey", "gr\u00fc\u00dfe", "Zulu", "1", "alpha", "2", "_x", "3"),
            new byte[] {0, -1, -61, 40});
        signature("signed anew", "s", fields("AccessKey", "k", "Signature", "old", "z", "1"), new byte[0]);
    }

    static void signature(String why, String secret, HashMap<String, String> fields, byte[] body) {
        RemotingCommand command = RemotingCommand.createRequestCommand(310, null);
        command.setExtFields(fields);
        command.setBody(body);
        byte[] content = AclUtils.combineRequestContent(command, new TreeMap<>(fields));
        line("signature", why, "secret", secret, "fields", fields, "body", body, "signature",
            AclUtils.calSignature(content, secret));
    }

    // -- JSON ----------------------------------------------------------------------------------------

    static HashMap<String, String> fields(String... namesAndValues) {
        HashMap<String, String> fields = new HashMap<>();
        for (int index = 0; index < namesAndValues.length; index += 2) {
            fields.put(namesAndValues[index], namesAndValues[index + 1]);
        }
        return fields;
    }

    static Map<String, Object> object(Object... namesAndValues) {
        Map<String, Object> object = new LinkedHashMap<>();
        for (int index = 0; index < namesAndValues.length; index += 2) {
            object.put((String) namesAndValues[index], namesAndValues[index + 1]);
        }
        return object;
    }

    static void line(String kind, String why, Object... namesAndValues) {
        Map<String, Object> line = object("release", release, "kind", kind, "why", why);
        line.putAll(object(namesAndValues));
        System.out.println(json(line));
    }

    /** Bytes are texts of hexadecimal digits. */
    static String json(Object value) {
        if (value instanceof byte[]) {
            return "\"" + UtilAll.bytes2string((byte[]) value) + "\"";
        }
        if (value instanceof Map) {
            List<String> parts = new ArrayList<>();
            ((Map<?, ?>) value).forEach((name, each) -> parts.add(json(name) + ": " + json(each)));
            return "{" + String.join(", ", parts) + "}";
        }
        if (value instanceof List) {
            List<String> parts = new ArrayList<>();
            ((List<?>) value).forEach(each -> parts.add(json(each)));
            return "[" + String.join(", ", parts) + "]";
        }
        if (!(value instanceof String)) {
            return String.valueOf(value);
        }
        StringBuilder text = new StringBuilder("\"");
        for (char each : ((String) value).toCharArray()) {
            boolean plain = each >= ' ' && each < 127 && each != '"' && each != '\\';
            text.append(plain ? String.valueOf(each) : String.format("\\u%04x", (int) each));
        }
        return text.append('"').toString();
    }
}
