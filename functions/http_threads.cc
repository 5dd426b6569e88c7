#include "functions/http_threads.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <thread>
#include <vector>

namespace rekindle::functions {

namespace asio = boost::asio;

struct HttpThreads::Running {
  explicit Running(asio::io_context& context) : work(context.get_executor()) {}
  asio::executor_work_guard<asio::io_context::executor_type> work;
  std::vector<std::thread> threads;
};

HttpThreads::HttpThreads(int threads)
    : context_(std::make_shared<asio::io_context>(threads)), running_(std::make_unique<Running>(*context_)) {
  for (int i = 0; i < threads; ++i) {
    running_->threads.emplace_back([context = context_.get()] { context->run(); });
  }
}

HttpThreads::~HttpThreads() {
  running_->work.reset();
  for (std::thread& thread : running_->threads) thread.join();
}

}  // namespace rekindle::functions
