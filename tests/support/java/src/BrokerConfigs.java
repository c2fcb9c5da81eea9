import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import org.apache.kafka.server.config.DynamicBrokerConfig;

/**
 * Prints a line for each config of Kafka's brokers that DescribeConfigs shows: name, type, default
 * (a backslash and N: none), and whether it can change while Kafka runs: for each broker, for all.
 */
public class BrokerConfigs {
    public static void main(String[] arguments) throws Exception {
        for (ConfigDef.ConfigKey key : new TreeMap<>(AbstractKafkaConfig.CONFIG_DEF.configKeys()).values()) {
            if (!key.internalConfig) {
                boolean hasValue = key.hasDefault() && key.defaultValue != null;
                String text = hasValue ? ConfigDef.convertToString(key.defaultValue, key.type) : "\\N";
                String type = key.type.name().toLowerCase();
                System.out.println(String.join("\t", key.name, type, text, changes(key.name)));
            }
        }
    }

    @SuppressWarnings("unchecked")
    private static String changes(String name) throws Exception {
        if (!DynamicBrokerConfig.ALL_DYNAMIC_CONFIGS.contains(name)) {
            return "";
        }
        var field = DynamicBrokerConfig.class.getDeclaredField("PER_BROKER_CONFIGS");
        field.setAccessible(true);
        return ((Set<String>) field.get(null)).contains(name) ? "each" : "all";
    }
}
