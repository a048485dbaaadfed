# A job for Sidekiq: it adds what it got to a list in Redis, as recorded.py does.

require "json"
require "redis"
require "sidekiq"

# Gives the whole job to its instance.
class KeepsJob
  def call(instance, job, _queue)
    instance.whole = job
    yield
  end
end

Sidekiq.configure_server { |config| config.server_middleware { |all| all.add KeepsJob } }

module Shop
  class Ship
    include Sidekiq::Worker
    attr_accessor :whole

    def perform(arguments)
      record = { id: jid, kwargs: arguments, headers: whole["forebay"] }
      Redis.new(url: ENV["FAR_REDIS"]).rpush(ENV["FAR_LIST"], JSON.generate(record))
    end
  end
end
