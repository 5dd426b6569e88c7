// One instance, as the scheduler sees it.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "functions/scheduler_core.h"

namespace rekindle::functions {

// Its fields belong to the Core's mutex.
class Scheduler::Core::Instance : public RuntimeApi::Observer, public std::enable_shared_from_this<Instance> {
 public:
  Instance(std::weak_ptr<Core> core, FunctionPtr whose, std::string name,
           std::shared_ptr<boost::asio::io_context> io)
      : context(std::move(io)),
        function(std::move(whose)),
        id(std::move(name)),
        timer(*context),
        core_(std::move(core)) {}

  void OnReady() override {
    if (auto core = core_.lock()) core->OnReady(shared_from_this());
  }
  void OnInitError(std::string type, std::string body) override {
    if (auto core = core_.lock()) core->OnInitError(shared_from_this(), type, body);
  }
  void OnRestoreError(std::string type, std::string body) override {
    OnInitError(std::move(type), std::move(body));
  }
  void OnAnswer(std::string request_id, Answer answer) override {
    if (auto core = core_.lock()) core->OnAnswer(shared_from_this(), request_id, std::move(answer));
  }

  // Whoever tells of its end may let go of it as the last one.
  const std::shared_ptr<boost::asio::io_context> context;
  const FunctionPtr function;
  const std::string id;

  // kAnswering: it has answered, and what belongs to that is being done.
  enum class State { kStarting, kIdle, kBusy, kAnswering, kEnding };
  State state = State::kStarting;
  StartLevel level = StartLevel::kCold;
  absl::Time ordered;        // when its start was decided
  absl::Duration start;      // until it asked for its first invocation
  absl::Time idle_since;     // while it is
  absl::Time ending_since;   // when it was told to end; the past: it ended by itself
  bool was_idle = false;     // before its first call
  bool answered = false;     // at least once
  bool init_failed = false;  // and whom it was for was told
  bool filling = false;      // the rest of its image, and it has not been measured since
  absl::Time measured = absl::InfinitePast();
  RequestPtr current;
  std::shared_ptr<InstanceProcess> process;  // null: not started yet, or gone
  std::shared_ptr<RuntimeApi> api;
  std::optional<InstanceEnd> end;   // it ended before its start was through
  boost::asio::steady_timer timer;  // of its start, each invocation, AwaitFilled

 private:
  const std::weak_ptr<Core> core_;
};

}  // namespace rekindle::functions
