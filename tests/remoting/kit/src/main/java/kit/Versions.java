package kit;

import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** What 4.9 and 5.x have under different names, or only 5.x has. Found at run time, so that one source fits both. */
final class Versions {
    private static final String DEFAULT_TOPIC = "TBW102";

    private Versions() {
    }

    static String client() {
        return MQVersion.getVersionDesc(MQVersion.CURRENT_VERSION);
    }

    static boolean hasDelayTime() {
        return method(Message.class, "setDelayTimeMs") != null;
    }

    static boolean hasRecall() {
        return method(DefaultMQProducer.class, "recallMessage") != null;
    }

    static boolean hasCompressionTypes() {
        return method(DefaultMQProducer.class, "setCompressType") != null;
    }

    /** In 5.3.1 to 5.3.3 the acknowledgement of the request's send ends the wait for the reply. */
    static boolean hasBlockingRequest() {
        return !client().matches("V5_3_[123]");
    }

    static void createTopic(DefaultMQProducer producer, String topic, int queues) throws Exception {
        Method newer = find(DefaultMQProducer.class, "createTopic", String.class, String.class, int.class, Map.class);
        if (newer != null) {
            call(newer, producer, DEFAULT_TOPIC, topic, queues, new HashMap<String, String>());
        } else {
            Method older = find(DefaultMQProducer.class, "createTopic", String.class, String.class, int.class);
            call(older, producer, DEFAULT_TOPIC, topic, queues);
        }
    }

    static void setBroadcasting(DefaultMQPushConsumer consumer) throws Exception {
        Method setter = method(DefaultMQPushConsumer.class, "setMessageModel");
        call(setter, consumer, constant(setter, "BROADCASTING"));
    }

    /** LZ4, ZSTD or ZLIB. */
    static void setCompression(DefaultMQProducer producer, String type) throws Exception {
        Method setter = method(DefaultMQProducer.class, "setCompressType");
        call(setter, producer, constant(setter, type));
    }

    /** One of setDelayTimeMs, setDelayTimeSec, setDeliverTimeMs. */
    static void setTime(Message message, String setter, long value) throws Exception {
        call(method(Message.class, setter), message, value);
    }

    static String recallHandle(SendResult result) throws Exception {
        return (String) call(method(SendResult.class, "getRecallHandle"), result);
    }

    static String recall(DefaultMQProducer producer, String topic, String handle) throws Exception {
        return (String) call(find(DefaultMQProducer.class, "recallMessage", String.class, String.class), producer, topic, handle);
    }

    /** The hook that signs requests. */
    static RPCHook signing(String accessKey, String secretKey) {
        try {
            Class<?> credentials = Class.forName("org.apache.rocketmq.acl.common.SessionCredentials");
            Object held = credentials.getConstructor(String.class, String.class).newInstance(accessKey, secretKey);
            Class<?> hook = Class.forName("org.apache.rocketmq.acl.common.AclClientRPCHook");
            return (RPCHook) hook.getConstructor(credentials).newInstance(held);
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    static boolean hasPop() {
        return method(DefaultMQPushConsumer.class, "setClientRebalance") != null;
    }

    static void letBrokerRebalance(DefaultMQPushConsumer consumer) throws Exception {
        call(method(DefaultMQPushConsumer.class, "setClientRebalance"), consumer, false);
    }

    static void setPopBatch(DefaultMQPushConsumer consumer, int messages) throws Exception {
        call(method(DefaultMQPushConsumer.class, "setPopBatchNums"), consumer, messages);
    }

    /** The delays of failed messages that were popped. No setting changes them: who changes the array does. */
    static int[] popDelaySeconds(DefaultMQPushConsumer consumer) throws Exception {
        Field levels = consumer.getDefaultMQPushConsumerImpl().getClass().getDeclaredField("popDelayLevel");
        levels.setAccessible(true);
        return (int[]) levels.get(consumer.getDefaultMQPushConsumerImpl());
    }

    /** Makes a group, and has it pop a topic. */
    static void popGroup(DefaultMQAdminExt admin, String broker, String topic, String group, int retries) throws Exception {
        Method save = method(DefaultMQAdminExt.class, "createAndUpdateSubscriptionGroupConfig");
        Object settings = save.getParameterTypes()[1].getConstructor().newInstance();
        call(method(settings.getClass(), "setGroupName"), settings, group);
        call(method(settings.getClass(), "setRetryMaxTimes"), settings, retries);
        call(save, admin, broker, settings);
        setMode(admin, broker, topic, group, "POP");
    }

    /** Has a group PULL or POP. */
    static void setMode(DefaultMQAdminExt admin, String broker, String topic, String group, String mode) throws Exception {
        Method setter = method(DefaultMQAdminExt.class, "setMessageRequestMode");
        Object wanted = Arrays.stream(setter.getParameterTypes()[3].getEnumConstants())
            .filter(one -> ((Enum<?>) one).name().equals(mode))
            .findFirst()
            .orElseThrow();
        call(setter, admin, broker, topic, group, wanted, 0, 5_000L);
    }

    private static Method method(Class<?> owner, String name) {
        return Arrays.stream(owner.getMethods()).filter(one -> one.getName().equals(name)).findFirst().orElse(null);
    }

    private static Method find(Class<?> owner, String name, Class<?>... parameters) {
        try {
            return owner.getMethod(name, parameters);
        } catch (NoSuchMethodException missing) {
            return null;
        }
    }

    private static Object constant(Method setter, String name) {
        return Arrays.stream(setter.getParameterTypes()[0].getEnumConstants())
            .filter(one -> one.toString().equals(name) || ((Enum<?>) one).name().equals(name))
            .findFirst()
            .orElseThrow();
    }

    private static Object call(Method method, Object target, Object... arguments) throws Exception {
        try {
            return method.invoke(target, arguments);
        } catch (InvocationTargetException wrapped) {
            if (wrapped.getCause() instanceof Exception cause) {
                throw cause;
            }
            throw wrapped;
        }
    }
}
