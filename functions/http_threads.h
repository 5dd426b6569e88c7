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

  boost::asio::io_context& context();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rekindle::functions
