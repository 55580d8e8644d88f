# Three tasks with ruby-pg: ruby tasks.rb DSN exclusive | throttle | work
require "json"
require "pg"

# Runs the block in a transaction, and all of it again when the server asks for that.
# Its answer counts after the commit.
def transaction(connection)
  attempt = 1
  begin
    connection.transaction do
      connection.exec("set transaction isolation level read committed")
      yield
    end
  rescue PG::TRSerializationFailure, PG::TRDeadlockDetected
    raise if attempt == 10
    sleep(rand * 2**attempt / 1000)
    attempt += 1
    retry
  end
end

# One at a time: the lock ends with the transaction. Lock in one statement, and read in the next.
def exclusive(connection)
  puts(transaction(connection) do
    connection.exec_params("select lock.exclusive($1::text)", ["counter"])
    n = connection.exec("select n from counter").getvalue(0, 0).to_i + 1
    connection.exec_params("update counter set n = $1", [n])
    n
  end)
end

# Once per interval: the grant is committed before the work begins.
def throttle(connection)
  granted = transaction(connection) do
    connection.exec_params("select lock.lock_throttled_resource($1, $2)",
                           ["rebuild", "host 1"]).getvalue(0, 0)
  end
  puts(granted == "t" ? "granted" : "denied")
end

def handle(task) # Yours. What it raises is kept, and the task is tried again later.
  payload = JSON.parse(task["payload"] || "{}")
  raise payload["fail"] if payload["fail"]
end

# Captures, works, settles. When this program dies, the task's timeout gives the task to another.
def work(connection)
  loop do
    tasks = transaction(connection) do
      connection.exec_params("select id, attempt, payload from lock.capture(10, $1)",
                             ["print"]).to_a
    end
    return if tasks.empty?
    tasks.each do |task|
      status, delay, message = "done", "0", nil
      begin
        handle(task)
      rescue StandardError => error
        status, delay, message = "failed", "10 seconds", error.message
      end
      mine = transaction(connection) do
        connection.exec_params(
          "select lock.set_status($1, $2, $3, 'print', delay => $4, message => $5)",
          [task["id"], status, task["attempt"], delay, message]
        ).getvalue(0, 0)
      end
      puts "#{task["id"]} #{mine == "t" ? "settled" : "lost: somebody else has it"}"
    end
  end
end

connection = PG.connect(ARGV[0])
send(ARGV[1], connection)
connection.close
