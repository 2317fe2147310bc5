package kit;

import java.util.Objects;

/** What a case demands. Each method throws {@link Failed} with a sentence if it does not hold. */
final class Check {
    private Check() {
    }

    /** A case has not got what it demands. */
    static final class Failed extends RuntimeException {
        Failed(String why) {
            super(why);
        }
    }

    interface Action {
        void run() throws Exception;
    }

    static void that(boolean holds, String format, Object... values) {
        if (!holds) {
            throw new Failed(String.format(format, values));
        }
    }

    static void equal(String what, Object expected, Object actual) {
        that(Objects.equals(expected, actual), "%s: expected %s, got %s", what, expected, actual);
    }

    static void within(String what, double low, double high, double actual) {
        that(low <= actual && actual <= high, "%s: expected %.2f to %.2f, got %.2f", what, low, high, actual);
    }

    /** The error that the action throws, which must be of this class. */
    static <E extends Exception> E thrown(String what, Class<E> expected, Action action) {
        try {
            action.run();
        } catch (Exception error) {
            that(expected.isInstance(error), "%s: expected %s, got %s", what, expected.getSimpleName(), error);
            return expected.cast(error);
        }
        throw new Failed(what + ": expected " + expected.getSimpleName() + ", nothing was thrown");
    }
}
