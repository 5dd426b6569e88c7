// Takes the connections of an HTTP server's listening sockets, and keeps to its limits.
#pragma once

#include <any>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/deadline.h"
#include "base/unique_fd.h"
#include "functions/http_connection.h"
#include "functions/http_handler.h"
#include "functions/http_limits.h"
#include "functions/http_threads.h"

namespace rekindle::functions {

// A connection that is refused is answered when its request's head has come, so that a client that writes
// before it reads gets to see the answer, and the request may be one that is answered all the same; where
// many wait for that, the one that has waited longest is answered at once, and closed. Thread-safe. The
// handler is held weakly here, and by each open connection.
class HttpServer : public std::enable_shared_from_this<HttpServer> {
 public:
  // `one_strand`: all connections run on strand(), not each on its own. `accepting`: where connections are
  // accepted (HttpHandler::OnConnect), each listener's on a strand of its own; outlives Close. Null: on
  // strand().
  HttpServer(const HttpThreads& threads, HttpLimits limits, bool one_strand,
             const HttpThreads* accepting = nullptr);

  // Listens on a socket until Close.
  absl::Status Listen(UniqueFd listener, std::weak_ptr<HttpHandler> handler);
  void Close();
  // Connections that there are now take no further requests and close once they have answered the one that
  // they are at, or their first one; new ones are taken as ever.
  void FinishUp() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns when they have sent their last answers, or at `deadline`.
  void AwaitFinished(const Deadline& deadline) ABSL_LOCKS_EXCLUDED(mutex_);

  const HttpLimits& limits() const { return limits_; }
  const HttpStrand& strand() const { return strand_; }
  const std::shared_ptr<boost::asio::io_context>& io() const { return io_; }

  // For HttpConnection: memory for a body that is about to be read, its last answer, and its end.
  bool ReserveBody(size_t bytes);
  void ReleaseBody(size_t bytes) { bodies_ -= bytes; }
  void HasFinished(const HttpConnection* connection) ABSL_LOCKS_EXCLUDED(mutex_);
  void Forget(const HttpConnection* connection) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Listener;

  void Wait(std::shared_ptr<Listener> listener);
  void Accept(const std::shared_ptr<Listener>& listener);
  void Take(UniqueFd connection, const std::shared_ptr<HttpHandler>& handler) ABSL_LOCKS_EXCLUDED(mutex_);
  // `refusal`: how it is refused, if it is.
  void Serve(UniqueFd connection, const std::shared_ptr<HttpHandler>& handler, std::any context,
             std::optional<HttpAnswer> refusal) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::shared_ptr<boost::asio::io_context> io_, accepting_;  // which may be the same
  const HttpStrand strand_;
  const HttpLimits limits_;
  const bool one_strand_;
  std::atomic<size_t> bodies_ = 0;

  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<Listener>> listeners_ ABSL_GUARDED_BY(mutex_);
  // Open ones; each leaves when it closes.
  std::unordered_map<const HttpConnection*, std::shared_ptr<HttpConnection>> connections_
      ABSL_GUARDED_BY(mutex_);
  std::unordered_set<const HttpConnection*> finishing_ ABSL_GUARDED_BY(mutex_);
  // Of these, those that are refused: they count towards no limit but their own.
  std::unordered_map<const HttpConnection*, uint64_t> refused_ ABSL_GUARDED_BY(mutex_);  // its turn
  uint64_t next_turn_ ABSL_GUARDED_BY(mutex_) = 0;
  // Those of them that have not been told at once.
  std::map<uint64_t, const HttpConnection*> waiting_ ABSL_GUARDED_BY(mutex_);  // by turn
};

}  // namespace rekindle::functions
