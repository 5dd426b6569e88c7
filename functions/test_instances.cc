#include "functions/test_instances.h"

#include <signal.h>

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace rekindle::functions {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(1);
constexpr uint64_t kImageBytes = 1 << 20;

// As the scheduler holds an instance's process: what it does is done by the thread.
class TestProcess : public InstanceProcess {
 public:
  TestProcess(std::shared_ptr<TestRuntime> runtime, uint64_t grown_bytes, std::function<void()> on_grown,
              std::function<void()> on_measure, std::function<void(const StartFailure&)> on_failure)
      : runtime_(std::move(runtime)),
        grown_bytes_(grown_bytes),
        on_grown_(std::move(on_grown)),
        on_measure_(std::move(on_measure)),
        on_failure_(std::move(on_failure)) {}
  ~TestProcess() override { Kill(); }
  pid_t pid() const override { return 0; }
  void Kill() override { runtime_->Kill(); }
  uint64_t MemoryBytes() const override {
    on_measure_();
    return bytes_;
  }
  uint64_t PeakBytes() const override { return runtime_->peak_bytes(); }
  void IsReady() override {}
  void HasAnswered() override {
    bytes_ = grown_bytes_;
    on_grown_();
  }
  void WasEnded(const std::string& why) override {
    absl::MutexLock lock(&mutex_);
    absl::StrAppend(&log_, "ended: ", why, "\n");
  }
  void StartFails(const StartFailure& failure) override { on_failure_(failure); }
  void InvocationBegins(const std::string& request_id) override {
    absl::MutexLock lock(&mutex_);
    log_ = absl::StrCat("START ", request_id, "\n");
  }
  void InvocationIsTakenBack(const std::string& request_id) override {
    absl::MutexLock lock(&mutex_);
    absl::StrAppend(&log_, "taken back: ", request_id, "\n");
  }
  std::string InvocationEnds(const InvocationOutcome& report) override {
    absl::MutexLock lock(&mutex_);
    return absl::StrCat(log_, report.problem.empty() ? "" : absl::StrCat(report.problem, "\n"), "END ",
                        report.request_id);
  }

 private:
  const std::shared_ptr<TestRuntime> runtime_;
  const uint64_t grown_bytes_;
  const std::function<void()> on_grown_, on_measure_;
  const std::function<void(const StartFailure&)> on_failure_;
  std::atomic<uint64_t> bytes_{kTestInstanceBytes};
  absl::Mutex mutex_;
  std::string log_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

bool TestRuntime::Next() {
  HttpReply reply = http_.Get("/2018-06-01/runtime/invocation/next");
  request_id_ = reply.headers["lambda-runtime-aws-request-id"];
  payload_ = std::move(reply.body);
  return reply.status == 200;
}

void TestRuntime::WaitForKill() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&killed_));
}

bool TestRuntime::killed() const {
  absl::MutexLock lock(&mutex_);
  return killed_;
}

void TestRuntime::Kill() {
  absl::MutexLock lock(&mutex_);
  if (killed_) return;
  killed_ = true;
  http_.HangUp();
}

InstanceEnd Exits(int code) { return {{code, 0}}; }
InstanceEnd DiesOf(int signal) { return {{0, signal}}; }

InstanceEnd Echo(TestRuntime& runtime) {
  while (runtime.Next()) runtime.Answer(runtime.payload());
  return Exits(1);
}

TestStarter::~TestStarter() {
  std::vector<std::thread> threads;
  {
    absl::MutexLock lock(&mutex_);
    threads = std::move(threads_);
  }
  for (std::thread& thread : threads) thread.join();
}

void TestStarter::Become(const std::string& function, TestProgram program) {
  absl::MutexLock lock(&mutex_);
  programs_[function] = std::move(program);
}

void TestStarter::Refuse(StartLevel level, absl::Status why) {
  absl::MutexLock lock(&mutex_);
  refused_[level] = std::move(why);
}

void TestStarter::RefuseToCapture(absl::Status why) {
  absl::MutexLock lock(&mutex_);
  no_capture_ = std::move(why);
}

void TestStarter::RefuseTemplates(const std::string& function) {
  absl::MutexLock lock(&mutex_);
  without_template_.insert(function);
}

void TestStarter::HangInCapture(const std::string& function) {
  absl::MutexLock lock(&mutex_);
  hanging_.insert(function);
}

void TestStarter::MakeTemplatesOf(uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  template_bytes_ = bytes;
}

void TestStarter::GrowTo(uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  grown_bytes_ = bytes;
}

void TestStarter::StopMaking() {
  absl::MutexLock lock(&mutex_);
  stop_capturing_ = true;
}

void TestStarter::HangInStart(const std::string& function) {
  absl::MutexLock lock(&mutex_);
  not_starting_.insert(function);
}

void TestStarter::LetStart(const std::string& function) {
  absl::MutexLock lock(&mutex_);
  not_starting_.erase(function);
}

void TestStarter::MeasureBy(std::function<void()> measuring) {
  absl::MutexLock lock(&mutex_);
  measuring_ = std::move(measuring);
}

void TestStarter::HoldStarts(bool hold) {
  absl::MutexLock lock(&mutex_);
  held_ = hold;
}

absl::StatusOr<StartedInstance> TestStarter::Start(const StartOrder& order) {
  auto runtime = std::make_shared<TestRuntime>(order);
  absl::MutexLock lock(&mutex_);
  auto may = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return !held_ && !not_starting_.contains(order.function);
  };
  mutex_.Await(absl::Condition(&may));
  if (auto refused = refused_.find(order.level); refused != refused_.end() && !refused->second.ok()) {
    return refused->second;
  }
  auto program = programs_.find(order.function);
  TestProgram run = program == programs_.end() ? Echo : program->second;
  started_.push_back(order);
  started_.back().on_end = nullptr;  // it holds the instance
  living_[order.instance] = runtime;
  StartedInstance started;
  started.process = std::make_unique<TestProcess>(
      runtime, grown_bytes_,
      [this] {
        absl::MutexLock grown(&mutex_);
        ++grown_;
      },
      [this] {
        std::function<void()> measuring;
        {
          absl::MutexLock measure(&mutex_);
          measuring = measuring_;
        }
        if (measuring) measuring();
      },
      [this](const StartFailure& failure) {
        absl::MutexLock failed(&mutex_);
        failed_.push_back(failure);
      });
  started.listener = runtime->TakeListener();
  threads_.emplace_back([this, runtime, run = std::move(run)] {
    InstanceEnd end = run(*runtime);
    if (runtime->killed()) end = DiesOf(SIGKILL);
    {
      absl::MutexLock ended(&mutex_);
      living_.erase(runtime->order().instance);
    }
    runtime->HangUp();
    runtime->order().on_end(end);
  });
  return started;
}

void TestStarter::Note(Making::What what, const std::string& function, const std::string& dependency) {
  absl::MutexLock lock(&mutex_);
  made_.push_back({what, function, dependency});
}

absl::StatusOr<uint64_t> TestStarter::MakeTemplate(const std::string& function, uint64_t,
                                                   const std::string& dependency_image) {
  Note(Making::What::kTemplate, function, function.empty() ? dependency_image : "");
  absl::MutexLock lock(&mutex_);
  if (without_template_.contains(function)) return absl::FailedPreconditionError("it has threads");
  return template_bytes_;
}

void TestStarter::DropTemplate(const std::string& function, uint64_t, const std::string& dependency_image) {
  Note(Making::What::kDropTemplate, function, function.empty() ? dependency_image : "");
}

absl::StatusOr<uint64_t> TestStarter::CaptureImage(const std::string& function, uint64_t) {
  Note(Making::What::kImage, function, "");
  absl::MutexLock lock(&mutex_);
  if (!no_capture_.ok()) return no_capture_;
  if (hanging_.contains(function)) {
    mutex_.Await(absl::Condition(&stop_capturing_));
    return absl::CancelledError("nobody wants images any more");
  }
  return kImageBytes;
}

void TestStarter::DropImage(const std::string& function, uint64_t) {
  Note(Making::What::kDropImage, function, "");
}

std::vector<StartOrder> TestStarter::started() const {
  absl::MutexLock lock(&mutex_);
  return started_;
}

std::vector<StartFailure> TestStarter::failed() const {
  absl::MutexLock lock(&mutex_);
  return failed_;
}

size_t TestStarter::living() const {
  absl::MutexLock lock(&mutex_);
  return living_.size();
}

std::vector<TestStarter::Making> TestStarter::made() const {
  absl::MutexLock lock(&mutex_);
  return made_;
}

bool TestStarter::WaitForStarts(size_t count) {
  absl::MutexLock lock(&mutex_);
  auto come = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return started_.size() >= count; };
  return mutex_.AwaitWithTimeout(absl::Condition(&come), kPatience);
}

bool TestStarter::WaitForLiving(size_t count) {
  absl::MutexLock lock(&mutex_);
  auto come = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return living_.size() == count; };
  return mutex_.AwaitWithTimeout(absl::Condition(&come), kPatience);
}

bool TestStarter::WaitForMade(const Making& making) {
  absl::MutexLock lock(&mutex_);
  auto come = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return std::find(made_.begin(), made_.end(), making) != made_.end();
  };
  return mutex_.AwaitWithTimeout(absl::Condition(&come), kPatience);
}

bool TestStarter::WaitForGrown(int count) {
  absl::MutexLock lock(&mutex_);
  auto come = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return grown_ >= count; };
  return mutex_.AwaitWithTimeout(absl::Condition(&come), kPatience);
}

void TestStarter::KillInstance(const std::string& instance) {
  absl::MutexLock lock(&mutex_);
  auto found = living_.find(instance);
  if (found != living_.end()) found->second->Kill();
}

}  // namespace rekindle::functions
