package kit;

import java.util.Map;
import java.util.StringJoiner;

/** Maps, lists, numbers, booleans and texts as JSON. The client's own library for it differs by version. */
final class Json {
    private Json() {
    }

    static String of(Object value) {
        if (value instanceof Map<?, ?> map) {
            StringJoiner joined = new StringJoiner(", ", "{", "}");
            map.forEach((key, held) -> joined.add(quote(String.valueOf(key)) + ": " + of(held)));
            return joined.toString();
        }
        if (value instanceof Iterable<?> list) {
            StringJoiner joined = new StringJoiner(", ", "[", "]");
            list.forEach(held -> joined.add(of(held)));
            return joined.toString();
        }
        return value == null || value instanceof Number || value instanceof Boolean
            ? String.valueOf(value)
            : quote(value.toString());
    }

    private static String quote(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char letter : text.toCharArray()) {
            if (letter == '"' || letter == '\\') {
                quoted.append('\\').append(letter);
            } else if (letter < ' ' || letter > '~') {
                quoted.append(String.format("\\u%04x", (int) letter));
            } else {
                quoted.append(letter);
            }
        }
        return quoted.append('"').toString();
    }
}
