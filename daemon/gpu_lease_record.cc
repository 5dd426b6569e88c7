#include "daemon/gpu_lease_record.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/record_file.h"
#include "base/status.h"
#include "rekindle/v1/gpu_leases.pb.h"

namespace rekindle::daemon {
namespace {

constexpr uint32_t kLeasesFormat = 1;
// More than a node ever has; a record that says so is damaged.
constexpr uint32_t kMostLeases = 1u << 30;

}  // namespace

std::string GpuLeaseRecord::LockPath() const { return absl::StrCat(path_, ".lock"); }

absl::Status GpuLeaseRecord::Take() {
  const std::string path = LockPath();
  // A cleaner may have removed it, and another one made it anew.
  if (lock_.valid() && IsFileAt(lock_, path)) return absl::OkStatus();
  lock_.Reset();
  written_.reset();
  const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
  RK_RETURN_IF_ERROR(MakeDirectories(folder.string()));
  absl::StatusOr<UniqueFd> held = LockFile(path, LOCK_EX | LOCK_NB);
  if (absl::IsUnavailable(held.status())) {
    pid_t other = 0;
    const bool named = absl::SimpleAtoi(ReadFile(path).value_or(""), &other);
    return absl::UnavailableError(absl::StrCat(
        "another daemon", named ? absl::StrCat(", process ", other, ",") : "",
        " gives the leases of GPU jobs for the runtime folder ", folder.parent_path().string(),
        ": ask that one, or end it, or start this one with a folder of its own (--runtime-dir)"));
  }
  RK_RETURN_IF_ERROR(held.status());
  if (!IsFileAt(*held, path)) return absl::UnavailableError(absl::StrCat(path, " was removed just now"));
  lock_ = *std::move(held);
  // For people; without it the lock is as good.
  const std::string pid = absl::StrCat(::getpid(), "\n");
  if (::ftruncate(lock_.get(), 0) == 0) (void)!::pwrite(lock_.get(), pid.data(), pid.size(), 0);
  return absl::OkStatus();
}

bool GpuLeaseRecord::IsTakenByOther() const {
  if (lock_.valid() && IsFileAt(lock_, LockPath())) return false;
  const absl::StatusOr<UniqueFd> file = OpenFile(LockPath(), O_RDWR);
  return file.ok() && ::flock(file->get(), LOCK_SH | LOCK_NB) != 0;
}

absl::StatusOr<std::vector<GpuJobLeases>> GpuLeaseRecord::Read() const {
  absl::StatusOr<v1::GpuLeasesRecord> file = ReadRecordFile<v1::GpuLeasesRecord>(path_, kLeasesFormat);
  if (absl::IsNotFound(file.status())) return std::vector<GpuJobLeases>();
  RK_RETURN_IF_ERROR(file.status());
  std::vector<GpuJobLeases> jobs;
  for (const v1::GpuJobLeases& job : file->jobs()) {
    if (job.pid() <= 0 || job.leases() > kMostLeases) {
      return UnusableRecord(path_, absl::StrCat("process ", job.pid(), " with ", job.leases(), " leases"));
    }
    std::set<std::string> ids(job.lease_ids().begin(), job.lease_ids().end());
    if (ids.size() > job.leases()) {
      return UnusableRecord(path_, absl::StrCat("process ", job.pid(), " with more IDs of leases than the ",
                                                job.leases(), " leases that it has"));
    }
    jobs.push_back({{job.pid(), job.start_ticks()},
                    static_cast<int>(job.leases()),
                    job.pinned(),
                    std::move(ids),
                    job.pid_namespace()});
  }
  return jobs;
}

absl::StatusOr<std::string> GpuLeaseRecord::SetAside() const {
  std::string aside = absl::StrCat(path_, ".unread");
  if (::rename(path_.c_str(), aside.c_str()) == 0) return aside;
  return ErrnoStatus(errno, absl::StrCat("moving ", path_, " to ", aside));
}

absl::Status GpuLeaseRecord::Write(const std::vector<GpuJobLeases>& jobs) {
  if (written_ == jobs) return absl::OkStatus();
  v1::GpuLeasesRecord file;
  file.set_format(kLeasesFormat);
  for (const GpuJobLeases& job : jobs) {
    v1::GpuJobLeases* out = file.add_jobs();
    out->set_pid(job.job.pid);
    out->set_start_ticks(job.job.start_ticks);
    out->set_leases(static_cast<uint32_t>(job.leases));
    out->set_pinned(job.pinned);
    for (const std::string& id : job.ids) out->add_lease_ids(id);
    out->set_pid_namespace(job.pid_namespace);
  }
  RK_RETURN_IF_ERROR(MakeDirectories(std::filesystem::path(path_).parent_path().string()));
  RK_RETURN_IF_ERROR(WriteRecordFile(path_, file, RecordOutlives::kProcess));
  written_ = jobs;
  return absl::OkStatus();
}

}  // namespace rekindle::daemon
