package kit;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** The command line: words, options with a value ({@code --suffix x}), and flags ({@code --orderly}). */
final class Options {
    private static final Set<String> FLAGS = Set.of("broadcasting", "list", "orderly", "tls");

    final List<String> words = new ArrayList<>();
    private final Map<String, String> values = new HashMap<>();

    Options(String[] arguments) {
        for (int i = 0; i < arguments.length; i++) {
            String argument = arguments[i];
            if (!argument.startsWith("--")) {
                words.add(argument);
            } else if (FLAGS.contains(argument.substring(2))) {
                values.put(argument.substring(2), "");
            } else if (i + 1 < arguments.length) {
                values.put(argument.substring(2), arguments[++i]);
            } else {
                throw new IllegalArgumentException(argument + " needs a value");
            }
        }
    }

    boolean has(String name) {
        return values.containsKey(name);
    }

    String text(String name) {
        String value = values.get(name);
        if (value == null) {
            throw new IllegalArgumentException("--" + name + " is missing");
        }
        return value;
    }

    String text(String name, String otherwise) {
        return values.getOrDefault(name, otherwise);
    }

    int number(String name, int otherwise) {
        return has(name) ? Integer.parseInt(text(name)) : otherwise;
    }
}
