#include "daemon/function_events.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "functions/request_id.h"

namespace rekindle::daemon {
namespace {

// For an instance that is free.
constexpr absl::Duration kLongestWait = absl::Hours(1);
// After the first attempts at what is called asynchronously that the function has failed; a further one is
// the last. Lambda waits one and two minutes.
constexpr absl::Duration kRetryAfter[] = {absl::Seconds(10), absl::Minutes(1)};
// After one for which the node had no instance: doubled each time.
constexpr absl::Duration kFirstWaitForNode = absl::Seconds(1), kLongestWaitForNode = absl::Minutes(1);

}  // namespace

struct FunctionEvents::Event {
  functions::Call call;
  uid_t owner = 0;  // of the function that it was accepted for
  absl::Time until;
  size_t failures = 0;                     // of the function
  int starts_failed = 0;                   // of the node, since then
  std::shared_ptr<WaitingEvents> waiting;  // it counts there, with
  size_t bytes = 0;
  std::shared_ptr<void> work;

  ~Event() {
    if (waiting) waiting->Remove(owner, bytes);
  }
};

FunctionEvents::FunctionEvents(const functions::FunctionCatalog& catalog, functions::Scheduler& scheduler,
                               functions::FunctionLogs& logs, functions::HttpThreads& threads)
    : catalog_(catalog),
      scheduler_(scheduler),
      logs_(logs),
      threads_(threads),
      waiting_(std::make_shared<WaitingEvents>()) {}

FunctionEvents::~FunctionEvents() {
  lifeline_.Cut();
  absl::MutexLock lock(&mutex_);
  for (const auto& timer : retries_) timer->cancel();
}

void FunctionEvents::FinishUp() {
  absl::MutexLock lock(&mutex_);
  ending_ = true;
  for (const auto& timer : retries_) timer->cancel();
}

absl::Status FunctionEvents::Accept(const functions::FunctionRecord& function, functions::Call call,
                                    std::shared_ptr<void> work) {
  const size_t bytes = call.payload.size() + call.client_context.size();
  RK_RETURN_IF_ERROR(waiting_->Add(function.owner.uid, bytes));
  if (call.request_id.empty()) call.request_id = functions::NewRequestId();
  auto event = std::make_shared<Event>();
  event->call = std::move(call);
  event->owner = function.owner.uid;
  event->until = SteadyNow() + kLongestWait;
  event->call.gone = [until = event->until] { return SteadyNow() > until; };
  event->waiting = waiting_;
  event->bytes = bytes;
  event->work = std::move(work);
  Try(event);
  return absl::OkStatus();
}

void FunctionEvents::Try(const std::shared_ptr<Event>& event) {
  const auto present = catalog_.Find(event->call.function);
  if (!present.ok() || present->owner.uid != event->owner)
    return Drop(*event, "the function was removed meanwhile");
  const std::shared_ptr<const functions::Call> call(event, &event->call);  // as long as the event is there
  scheduler_.InvokeEvent(call, [end = lifeline_.end(), event](absl::StatusOr<functions::CallResult> result) {
    if (auto self = end.Hold()) return self->Tried(event, result);
    if (result.ok() && result->function_error.empty()) return;
    Log(LogLevel::kWarning, absl::StrCat("an asynchronous call of function '", event->call.function,
                                         "' is dropped: the daemon is ending"));
  });
}

void FunctionEvents::Tried(const std::shared_ptr<Event>& event,
                           const absl::StatusOr<functions::CallResult>& result) {
  if (result.ok() && result->function_error.empty()) return;
  if (absl::IsCancelled(result.status())) {
    return Drop(*event,
                absl::StrCat("no instance was free for it within ", absl::FormatDuration(kLongestWait)));
  }
  absl::Duration wait;
  // The function has not had it.
  if (absl::IsUnavailable(result.status()) || absl::IsResourceExhausted(result.status())) {
    wait = std::min(kFirstWaitForNode * (1 << std::min(event->starts_failed, 10)), kLongestWaitForNode);
    ++event->starts_failed;
  } else {
    event->starts_failed = 0;
    if (event->failures < std::size(kRetryAfter)) wait = kRetryAfter[event->failures];
    ++event->failures;
  }
  bool ending;
  {
    absl::MutexLock lock(&mutex_);
    ending = ending_;
  }
  if (ending || event->failures > std::size(kRetryAfter) || absl::IsNotFound(result.status()) ||
      SteadyNow() + wait > event->until) {
    return Drop(*event, absl::StrCat("it failed ", event->failures + event->starts_failed, " times",
                                     ending ? ", and the daemon is ending: " : ": ",
                                     result.ok() ? result->payload.substr(0, 200)
                                                 : std::string(result.status().message())));
  }
  TryLater(event, wait);
}

void FunctionEvents::Drop(const Event& event, absl::string_view why) {
  const std::string& name = event.call.function;
  Log(LogLevel::kWarning, absl::StrCat("an asynchronous call of function '", name, "' is dropped: ", why));
  // Who has written the function looks there.
  auto present = catalog_.Find(name);
  if (!present.ok() || present->owner.uid != event.owner) return;
  if (auto log = logs_.OpenStream(name, "events", present->owner); log.ok()) {
    (*log)->Note(absl::StrCat("RequestId: ", event.call.request_id,
                              " rekindle: this asynchronous call is dropped: ", why));
  }
}

void FunctionEvents::TryLater(const std::shared_ptr<Event>& event, absl::Duration wait) {
  auto timer = std::make_shared<boost::asio::steady_timer>(*threads_.context());
  absl::MutexLock lock(&mutex_);
  timer->expires_after(absl::ToChronoNanoseconds(ending_ ? absl::ZeroDuration() : wait));
  retries_.insert(timer);
  timer->async_wait([end = lifeline_.end(), event, timer](const boost::system::error_code& /*error*/) {
    auto self = end.Hold();
    if (!self) return;
    {
      absl::MutexLock done(&self->mutex_);
      self->retries_.erase(timer);
    }
    // Cancelled: it is time for the last attempt.
    self->Try(event);
  });
}

}  // namespace rekindle::daemon
