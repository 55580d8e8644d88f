// Three tasks with JDBC, where DSN is jdbc:postgresql://host/database?user=app
//   java -cp postgresql.jar Tasks.java DSN exclusive | throttle | work
import java.sql.*;
import java.util.*;

class Tasks {
    interface Work<T> { T run() throws SQLException; }

    /** Runs work in a transaction, and all of it again when the server asks for that. */
    static <T> T transaction(Connection connection, Work<T> work) throws Exception {
        for (int attempt = 1; ; attempt++) {
            try {
                T answer = work.run();
                connection.commit();
                return answer; // counts after the commit
            } catch (SQLException | RuntimeException e) {
                try { connection.rollback(); } catch (SQLException gone) { e.addSuppressed(gone); }
                String state = e instanceof SQLException sql ? sql.getSQLState() : null;
                boolean again = "40001".equals(state) || "40P01".equals(state);
                if (!again || attempt == 10) throw e;
                Thread.sleep((long) (Math.random() * (1 << attempt)));
            }
        }
    }

    /** The first column of the first row. */
    static Object ask(Connection connection, String sql, Object... arguments)
            throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            for (int n = 0; n < arguments.length; n++) statement.setObject(n + 1, arguments[n]);
            if (!statement.execute()) return null;
            try (ResultSet rows = statement.getResultSet()) {
                return rows.next() ? rows.getObject(1) : null;
            }
        }
    }

    /** One at a time, until the transaction ends. Lock in one statement, and read in the next. */
    static void exclusive(Connection connection) throws Exception {
        System.out.println(transaction(connection, () -> {
            ask(connection, "select lock.exclusive(?::text)", "counter");
            int n = (Integer) ask(connection, "select n from counter") + 1;
            ask(connection, "update counter set n = ?", n);
            return n;
        }));
    }

    /** Once per interval: the grant is committed before the work begins. */
    static void throttle(Connection connection) throws Exception {
        boolean granted = transaction(connection, () -> (Boolean) ask(connection,
            "select lock.lock_throttled_resource(?, ?)", "rebuild", "host 1"));
        System.out.println(granted ? "granted" : "denied");
    }

    record Task(String id, long attempt, String payload) { }

    /** Yours. What it throws is kept, and the task is tried again later. */
    static void handle(Task task) {
        String payload = String.valueOf(task.payload());
        if (payload.contains("fail")) throw new RuntimeException("cannot do " + payload);
    }

    static List<Task> capture(Connection connection) throws SQLException {
        List<Task> tasks = new ArrayList<>();
        try (Statement statement = connection.createStatement();
             ResultSet rows = statement.executeQuery(
                 "select id, attempt, payload from lock.capture(10, 'print')")) {
            while (rows.next()) {
                tasks.add(new Task(rows.getString(1), rows.getLong(2), rows.getString(3)));
            }
        }
        return tasks;
    }

    /** Captures, works, settles. If this dies, the task's timeout gives the task to another. */
    static void work(Connection connection) throws Exception {
        for (;;) {
            List<Task> tasks = transaction(connection, () -> capture(connection));
            if (tasks.isEmpty()) return;
            for (Task task : tasks) {
                Object[] result = {task.id(), "done", task.attempt(), "0", null};
                try {
                    handle(task);
                } catch (RuntimeException e) {
                    result[1] = "failed";
                    result[3] = "10 seconds";
                    result[4] = e.getMessage();
                }
                boolean mine = transaction(connection, () -> (Boolean) ask(connection, """
                    select lock.set_status(?, ?::lock.task_status, ?, 'print',
                        delay => ?::interval, message => ?::text)""", result));
                System.out.println(task.id() + (mine ? " settled" : " lost: somebody else has it"));
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        try (Connection connection = DriverManager.getConnection(arguments[0])) {
            connection.setAutoCommit(false);
            connection.setTransactionIsolation(Connection.TRANSACTION_READ_COMMITTED);
            switch (arguments[1]) {
                case "exclusive" -> exclusive(connection);
                case "throttle" -> throttle(connection);
                case "work" -> work(connection);
            }
        }
    }
}
