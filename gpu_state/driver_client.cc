#include "gpu_state/driver_client.h"

#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <thread>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/companion_program.h"
#include "base/deadline.h"
#include "base/packet_socket.h"
#include "base/parallel.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "base/timed_await.h"

namespace rekindle::gpu {
namespace {

constexpr char kProgram[] = "rekindle-gpu-helper";
// Initialising the driver takes seconds where there are many GPUs and nothing keeps them awake.
constexpr absl::Duration kHelloMayTake = absl::Minutes(2);
constexpr absl::Duration kDevicesMayTake = absl::Seconds(30);
constexpr absl::Duration kDyingMayTake = absl::Seconds(10);
// Of a process that may be out of step with its callers.
constexpr absl::Duration kLateAnswerMayTake = absl::Milliseconds(100);
constexpr int kMostQuestions = 6;
constexpr size_t kMostOpenQuestions = 4;
// For a helper that is told to end, and puts things back. Beyond that it goes on by itself.
constexpr absl::Duration kEndingMayTake = absl::Minutes(20);

bool IsQuestion(const HelperRequest& request) {
  return request.what == HelperRequest::What::kState || request.what == HelperRequest::What::kThread;
}

std::vector<HelperRequest> RequestsFor(HelperRequest::What what, absl::Span<const pid_t> pids) {
  std::vector<HelperRequest> requests(pids.size());
  for (size_t i = 0; i < pids.size(); ++i) {
    requests[i].what = what;
    requests[i].pid = pids[i];
  }
  return requests;
}

}  // namespace

// One helper process and what it has been asked.
class DriverClient::Helper {
 public:
  static absl::StatusOr<std::shared_ptr<Helper>> Start(const std::string& program,
                                                       const DriverClientOptions& options, int lock) {
    RK_ASSIGN_OR_RETURN(auto ends, PacketSocketPair());
    UniqueFd &ours = ends.first, &theirs = ends.second;
    SubprocessOptions start;
    start.argv = {program};
    if (!options.ledger_directory.empty()) {
      start.argv.push_back(options.ledger_directory);
      start.argv.push_back(absl::StrCat(absl::ToInt64Milliseconds(options.room_timeout)));
    }
    start.descriptors = {{theirs.get(), kHelperSocket}, {STDERR_FILENO, STDERR_FILENO}};
    if (lock >= 0) start.descriptors.emplace_back(lock, kHelperLock);
    // A terminal's Ctrl-C and what ends our process group are not for it: it has to put things back.
    start.new_session = true;
    RK_ASSIGN_OR_RETURN(Subprocess process, Subprocess::Start(start));
    std::shared_ptr<Helper> helper;
    RK_RETURN_IF_ERROR(CatchNoMoreThreads([&] {
      helper.reset(new Helper(std::move(process), std::move(ours)));
      return absl::OkStatus();
    }));
    return helper;
  }

  ~Helper() {
    // It sees the end of the stream, puts things back and ends. A hung one must not: its master lives, and
    // moves what it would put back.
    bool hung, acts;
    {
      absl::MutexLock lock(&mutex_);
      hung = retired_;
      acts = acts_;
      if (hung) Kill();
    }
    ::shutdown(socket_.get(), hung ? SHUT_RDWR : SHUT_WR);
    if (!AwaitEnd(acts && !hung ? kEndingMayTake : kDyingMayTake)) {
      // In a call of the driver, which nothing may end. In that of one who only asks nothing is lost.
      if (!acts) Kill();
      process_.Release();
    }
    ::shutdown(socket_.get(), SHUT_RDWR);
    reader_.join();
  }

  // It moves memory, or takes the place of one that has.
  void NoteActs() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    acts_ = true;
  }

  // Numbers and sends a request. False: the helper is gone.
  bool Send(HelperRequest request, uint64_t* id) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (gone_) return false;
    request.id = *id = next_id_++;
    const std::string packet = request.Encode();
    ssize_t n;
    while ((n = ::send(socket_.get(), packet.data(), packet.size(), MSG_NOSIGNAL)) < 0 && errno == EINTR) {
    }
    if (n < 0) return false;
    answers_[*id] = std::nullopt;
    return true;
  }

  // `question_of`: not 0: it may be answered later, and is open until then.
  absl::StatusOr<HelperAnswer> Await(uint64_t id, const Deadline& deadline, bool* hangs,
                                     pid_t question_of = 0) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    auto arrived = [this, id]()
                       ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return gone_ || answers_[id].has_value(); };
    const bool in_time = AwaitUntil(mutex_, absl::Condition(&arrived), deadline);
    std::optional<HelperAnswer> answer = std::move(answers_[id]);
    answers_.erase(id);
    if (retired_ && answers_.empty()) Kill();
    if (answer) return *std::move(answer);
    if (in_time) return absl::UnavailableError("Rekindle's GPU helper died");
    *hangs = question_of == 0;
    if (question_of != 0) open_questions_[id] = question_of;
    return absl::UnavailableError("the NVIDIA driver did not answer in time");
  }

  // It is given no more work, and killed when it has none any more that may still end.
  void Retire() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    retired_ = true;
    if (answers_.empty()) Kill();
  }

  size_t OpenQuestionsOf(pid_t pid) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return static_cast<size_t>(
        absl::c_count_if(open_questions_, [pid](const auto& question) { return question.second == pid; }));
  }

  bool gone() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return gone_;
  }

 private:
  Helper(Subprocess process, UniqueFd socket)
      : process_(std::move(process)), socket_(std::move(socket)), reader_([this] { Read(); }) {}

  void Kill() { (void)process_.Signal(SIGKILL); }

  // One that has ended but for a thread in a call of the driver, which nothing may end, is not waited for.
  bool AwaitEnd(absl::Duration patience) {
    for (const Deadline deadline(patience); !deadline.passed();) {
      if (process_.WaitFor(std::min(deadline.left(), kDyingMayTake)).ok()) return true;
      const auto stat = ReadProcessStat(process_.pid());
      if (!stat.ok() || stat->ending()) return false;
    }
    return false;
  }

  void Read() ABSL_LOCKS_EXCLUDED(mutex_) {
    std::string packet(kMaxPacketBytes, '\0');
    for (;;) {
      const ssize_t n = ::recv(socket_.get(), packet.data(), packet.size(), MSG_TRUNC);
      if (n < 0 && errno == EINTR) continue;
      absl::MutexLock lock(&mutex_);
      if (n <= 0) {
        gone_ = true;
        return;
      }
      auto answer =
          static_cast<size_t>(n) > packet.size()
              ? absl::InternalError(absl::StrCat("Rekindle's GPU helper gave an answer of ", n, " bytes"))
              : HelperAnswer::Decode(absl::string_view(packet.data(), static_cast<size_t>(n)));
      if (!answer.ok()) {
        AnswerAll(answer.status());
        begun_ = {};
        continue;
      }
      // The packets of one come one after another.
      DeviceView& view = answer->view;
      view.uses.insert(view.uses.begin(), begun_.view.uses.begin(), begun_.view.uses.end());
      if (!begun_.view.devices.empty()) view.devices = std::move(begun_.view.devices);
      if (!begun_.view.unreachable.empty()) view.unreachable = std::move(begun_.view.unreachable);
      begun_ = {};
      if (answer->more) {
        begun_ = *std::move(answer);
        continue;
      }
      open_questions_.erase(answer->id);
      auto it = answers_.find(answer->id);
      // One that came too late has nobody waiting.
      if (it != answers_.end()) it->second = *std::move(answer);
    }
  }

  // Which of them was answered nobody knows, and it is not the driver that keeps them waiting. What was asked
  // may have been done.
  void AnswerAll(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (auto& [id, answer] : answers_) {
      if (answer) continue;
      answer.emplace();
      answer->id = id;
      answer->status = absl::UnavailableError(why.message());
    }
  }

  Subprocess process_;
  UniqueFd socket_;
  absl::Mutex mutex_;
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, std::optional<HelperAnswer>> answers_ ABSL_GUARDED_BY(mutex_);  // of what is waited for
  std::map<uint64_t, pid_t> open_questions_ ABSL_GUARDED_BY(mutex_);  // for which nobody waits any more
  HelperAnswer begun_ ABSL_GUARDED_BY(mutex_);  // what there is of an answer that goes on
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;
  bool retired_ ABSL_GUARDED_BY(mutex_) = false;
  bool acts_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread reader_;
};

DriverClient::DriverClient(DriverClientOptions options) : options_(std::move(options)) {}

DriverClient::~DriverClient() = default;

absl::StatusOr<std::shared_ptr<DriverClient::Helper>> DriverClient::CurrentHelper(bool moves) {
  absl::MutexLock lock(&mutex_);
  acts_ |= moves;
  if (helper_ && !helper_->gone() && (may_move_ || !moves)) {
    if (acts_) helper_->NoteActs();
    return helper_;
  }
  std::string program = options_.program;
  if (program.empty()) {
    RK_ASSIGN_OR_RETURN(program, FindCompanionProgram(kProgram));
  }
  int descriptor = -1;
  bool may_move = true;
  if (options_.lock) {
    const absl::StatusOr<int> locked = options_.lock();
    if (moves) RK_RETURN_IF_ERROR(locked.status());
    may_move = locked.ok();
    descriptor = locked.value_or(-1);
  }
  RK_ASSIGN_OR_RETURN(std::shared_ptr<Helper> helper, Helper::Start(program, options_, descriptor));
  if (acts_) helper->NoteActs();
  uint64_t id = 0;
  HelperRequest hello;
  if (!helper->Send(hello, &id)) return absl::UnavailableError("Rekindle's GPU helper died at its start");
  bool hangs = false;
  auto answer = helper->Await(id, Deadline(kHelloMayTake), &hangs);
  if (hangs) helper->Retire();
  RK_RETURN_IF_ERROR(answer.status());
  RK_RETURN_IF_ERROR(answer->status);
  info_ = {answer->driver_version, answer->driver, answer->means};
  helper_ = helper;
  may_move_ = may_move;
  return helper;
}

void DriverClient::Retire(const std::shared_ptr<Helper>& helper) {
  {
    absl::MutexLock lock(&mutex_);
    if (helper_ == helper) helper_.reset();
  }
  helper->Retire();
}

std::vector<absl::StatusOr<HelperAnswer>> DriverClient::Call(std::vector<HelperRequest> requests,
                                                             absl::Duration timeout) {
  const bool moves = absl::c_any_of(
      requests, [](const HelperRequest& request) { return request.what == HelperRequest::What::kAct; });
  auto helper = CurrentHelper(moves);
  if (!helper.ok()) return {requests.size(), helper.status()};
  const Deadline deadline(timeout);
  std::vector<uint64_t> ids(requests.size());
  std::vector<bool> sent(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) sent[i] = (*helper)->Send(requests[i], &ids[i]);
  std::vector<absl::StatusOr<HelperAnswer>> answers;
  bool hangs = false;
  for (size_t i = 0; i < requests.size(); ++i) {
    bool this_hangs = false;
    const pid_t question_of = IsQuestion(requests[i]) ? requests[i].pid : 0;
    answers.push_back(sent[i] ? (*helper)->Await(ids[i], deadline, &this_hangs, question_of)
                              : absl::UnavailableError("Rekindle's GPU helper died"));
    hangs |= this_hangs;
    if (requests[i].pid != 0 && absl::IsUnavailable(answers.back().status())) {
      absl::MutexLock lock(&mutex_);
      out_of_step_.insert(requests[i].pid);
    }
    if (answers.back().ok() && !answers.back()->status.ok()) {
      absl::Status status = answers.back()->status;
      answers.back() = std::move(status);
    }
  }
  if (hangs) Retire(*helper);
  return answers;
}

absl::StatusOr<DriverInfo> DriverClient::Info() {
  RK_RETURN_IF_ERROR(CurrentHelper().status());
  absl::MutexLock lock(&mutex_);
  return info_;
}

absl::StatusOr<DeviceView> DriverClient::Devices() {
  HelperRequest request;
  request.what = HelperRequest::What::kDevices;
  auto answer = std::move(Call({request}, kDevicesMayTake)[0]);
  if (!answer.ok()) return answer.status();
  return std::move(answer->view);
}

bool DriverClient::HasOpenQuestions(pid_t pid) {
  std::shared_ptr<Helper> helper;
  {
    absl::MutexLock lock(&mutex_);
    helper = helper_;
  }
  return helper != nullptr && helper->OpenQuestionsOf(pid) >= kMostOpenQuestions;
}

std::vector<absl::StatusOr<ProcessState>> DriverClient::States(absl::Span<const pid_t> all,
                                                               absl::Duration timeout, Purpose purpose) {
  std::map<pid_t, absl::StatusOr<ProcessState>> sure;
  std::vector<pid_t> pids;
  for (pid_t pid : all) {
    if (purpose == Purpose::kToShow && HasOpenQuestions(pid)) {
      sure.emplace(pid, absl::UnavailableError(absl::StrCat(
                            "the NVIDIA driver has not answered about process ", pid, " so far")));
    } else {
      pids.push_back(pid);
    }
  }
  std::vector<pid_t> doubtful;
  {
    absl::MutexLock lock(&mutex_);
    absl::c_copy_if(pids, std::back_inserter(doubtful),
                    [this](pid_t pid)
                        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return out_of_step_.erase(pid) > 0; });
  }
  std::vector<pid_t> others;
  absl::c_copy_if(pids, std::back_inserter(others), [&sure, &doubtful](pid_t pid) {
    return sure.count(pid) == 0 && !absl::c_linear_search(doubtful, pid);
  });
  // All at once: what hangs has no other wait for it, nor those who wait for the answers do so twice.
  const Deadline deadline(timeout);
  std::vector<absl::StatusOr<ProcessState>> answers, states,
      of_doubtful(doubtful.size(), absl::UnknownError(""));
  InParallel(doubtful.size() + 1, [&](size_t i) {
    if (i == doubtful.size()) {
      answers = StatesOnce(others, timeout);
    } else {
      of_doubtful[i] = StateOutOfStep(doubtful[i], deadline);
    }
  });
  for (size_t i = 0; i < doubtful.size(); ++i) sure.emplace(doubtful[i], std::move(of_doubtful[i]));
  size_t next = 0;
  for (pid_t pid : all) {
    const auto known = sure.find(pid);
    states.push_back(known == sure.end() ? std::move(answers[next++]) : known->second);
  }
  return states;
}

absl::StatusOr<ProcessState> DriverClient::StateOutOfStep(pid_t pid, const Deadline& deadline) {
  absl::StatusOr<ProcessState> last = StatesOnce({pid}, deadline.left())[0];
  for (int question = 1; question < kMostQuestions && !absl::IsUnavailable(last.status()); ++question) {
    absl::SleepFor(kLateAnswerMayTake);
    absl::StatusOr<ProcessState> now = StatesOnce({pid}, deadline.left())[0];
    const bool agree = now.ok() && last.ok() ? *now == *last : now.status() == last.status();
    if (agree) return now;
    last = std::move(now);
  }
  absl::MutexLock lock(&mutex_);
  out_of_step_.insert(pid);
  if (!last.ok()) return last.status();
  // It does answer: that is not Unavailable.
  return absl::InternalError(
      absl::StrCat("process ", pid, ": the NVIDIA driver contradicts itself on its state"));
}

std::vector<absl::StatusOr<ProcessState>> DriverClient::StatesOnce(absl::Span<const pid_t> pids,
                                                                   absl::Duration timeout) {
  std::vector<absl::StatusOr<ProcessState>> states;
  for (absl::StatusOr<HelperAnswer>& answer : Call(RequestsFor(HelperRequest::What::kState, pids), timeout)) {
    if (!answer.ok()) {
      states.push_back(answer.status());
    } else if (!answer->state) {
      states.push_back(absl::InternalError("Rekindle's GPU helper gave no state"));
    } else {
      states.push_back(*answer->state);
    }
  }
  return states;
}

absl::StatusOr<std::vector<RestoreThread>> DriverClient::RestoreThreads(absl::Span<const pid_t> pids,
                                                                        absl::Duration timeout) {
  std::vector<RestoreThread> threads;
  for (const absl::StatusOr<RestoreThread>& thread : EachRestoreThread(pids, timeout)) {
    RK_RETURN_IF_ERROR(thread.status());
    threads.push_back(*thread);
  }
  return threads;
}

std::vector<absl::StatusOr<RestoreThread>> DriverClient::EachRestoreThread(absl::Span<const pid_t> pids,
                                                                           absl::Duration timeout) {
  std::vector<absl::StatusOr<RestoreThread>> threads;
  for (const absl::StatusOr<HelperAnswer>& answer :
       Call(RequestsFor(HelperRequest::What::kThread, pids), timeout)) {
    const pid_t pid = pids[threads.size()];
    threads.push_back(answer.ok() ? absl::StatusOr<RestoreThread>({pid, answer->thread}) : answer.status());
  }
  return threads;
}

std::vector<absl::Status> DriverClient::Act(Action action, absl::Span<const pid_t> pids,
                                            const ActOptions& options, absl::Duration timeout) {
  std::vector<HelperRequest> requests = RequestsFor(HelperRequest::What::kAct, pids);
  for (HelperRequest& request : requests) {
    request.action = action;
    if (action == Action::kLock) request.timeout_ms = absl::ToInt64Milliseconds(options.lock_timeout);
    if (action == Action::kRestore) request.pairs = options.pairs;
  }
  std::vector<absl::Status> results;
  for (const absl::StatusOr<HelperAnswer>& answer : Call(std::move(requests), timeout)) {
    results.push_back(answer.status());
  }
  return results;
}

void DriverClient::Settle(absl::Span<const pid_t> pids) {
  (void)Call(RequestsFor(HelperRequest::What::kSettle, pids), kDevicesMayTake);
}

}  // namespace rekindle::gpu
