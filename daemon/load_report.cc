#include "daemon/load_report.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/file.h"
#include "base/status.h"
#include "base/unix_socket.h"
#include "restore/hook_message.h"

namespace rekindle::daemon {
namespace {

constexpr size_t kMostWritten = 16 << 10;

}  // namespace

absl::StatusOr<UniqueFd> ListenForOwner(const std::string& path, const Owner& owner) {
  ::unlink(path.c_str());
  RK_ASSIGN_OR_RETURN(UniqueFd listener, ListenAt(path));
  if (::chmod(path.c_str(), 0600) != 0 ||
      (owner.uid != ::geteuid() && ::chown(path.c_str(), owner.uid, owner.gid) != 0)) {
    return ErrnoStatus(errno, absl::StrCat("giving ", path, " to uid ", owner.uid));
  }
  return listener;
}

class LoadReport::Observer : public functions::RuntimeApi::Observer {
 public:
  void OnInitError(std::string type, std::string body) override {
    const nlohmann::json error = nlohmann::json::parse(body, nullptr, false);
    absl::MutexLock lock(&mutex_);
    error_ = absl::StrCat(restore::TextOf(error, "errorType", type), ": ",
                          restore::TextOf(error, "errorMessage", body));
  }
  std::string error() const {
    absl::MutexLock lock(&mutex_);
    return error_;
  }

 private:
  mutable absl::Mutex mutex_;
  std::string error_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::unique_ptr<LoadReport>> LoadReport::Start(functions::HttpThreads& threads,
                                                              std::string socket, const Owner& owner) {
  std::unique_ptr<LoadReport> report(new LoadReport());
  RK_ASSIGN_OR_RETURN(report->nothing_, OpenFile("/dev/null", O_RDONLY));
  RK_ASSIGN_OR_RETURN(report->output_, ProcessOutput::Make(kMostWritten));
  report->written_ = report->output_->TakeWriteEnd();
  RK_RETURN_IF_ERROR(report->output_->Follow());
  report->socket_ = std::move(socket);
  RK_ASSIGN_OR_RETURN(UniqueFd listener, ListenForOwner(report->socket_, owner));
  report->observer_ = std::make_shared<Observer>();
  RK_ASSIGN_OR_RETURN(report->api_,
                      functions::RuntimeApi::Start(threads, std::move(listener), {}, report->observer_));
  return report;
}

LoadReport::~LoadReport() {
  if (!socket_.empty()) ::unlink(socket_.c_str());
}

LoadReport::Told LoadReport::End() {
  api_->Close();
  written_.Reset();
  Told told{observer_->error(), output_->Text()};
  absl::StripTrailingAsciiWhitespace(&told.written);
  return told;
}

}  // namespace rekindle::daemon
