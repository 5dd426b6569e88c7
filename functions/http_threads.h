// The threads that all HTTP servers of this process share: one event loop.
#pragma once

#include <memory>

namespace boost::asio {
class io_context;
}

namespace rekindle::functions {

// Thread-safe. It must outlive the servers that were started on it (RuntimeApi, InvokeApi): destroy those
// first.
class HttpThreads {
 public:
  explicit HttpThreads(int threads = 2);
  // Waits until what is left of closed servers (a last answer that is being written, a connection that is
  // being closed) has ended, which their time-outs bound. Not to be called from one of the threads.
  ~HttpThreads();
  HttpThreads(const HttpThreads&) = delete;
  HttpThreads& operator=(const HttpThreads&) = delete;

  // Kept by what runs on it, so that what is left of a server can be destroyed after the threads have ended.
  const std::shared_ptr<boost::asio::io_context>& context() const { return context_; }

 private:
  struct Running;
  const std::shared_ptr<boost::asio::io_context> context_;
  const std::unique_ptr<Running> running_;
};

}  // namespace rekindle::functions
