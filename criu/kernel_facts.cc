#include "criu/kernel_facts.h"

#include <linux/magic.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/machine.h"
#include "base/parallel.h"
#include "base/status.h"
#include "base/subprocess.h"

namespace rekindle::criu {
namespace {

constexpr char kPrefix[] = "kdat-";

// On a thread that has mounts of its own from now on.
absl::StatusOr<std::string> Ask(const std::vector<std::string>& command) {
  if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0)
    return ErrnoStatus(errno, "making mounts for CRIU alone");
  if (::mount("tmpfs", "/run", "tmpfs", 0, nullptr) != 0)
    return ErrnoStatus(errno, "mounting a tmpfs on /run");
  RK_ASSIGN_OR_RETURN(const CommandResult result, RunCommand(command, absl::Seconds(20)));
  absl::StatusOr<std::string> facts = ReadFile("/run/criu.kdat");
  if (facts.ok()) return facts;
  return absl::InternalError(
      absl::StrCat("`criu check` ended with ", result.exit.ToString(),
                   " and did not keep what it found out about this kernel: ", result.output));
}

}  // namespace

bool CriuKeepsKernelFacts() {
  struct statfs run;
  return ::statfs("/run", &run) == 0 && run.f_type == TMPFS_MAGIC;
}

absl::StatusOr<std::string> LearnKernel(const std::vector<std::string>& criu, const std::string& directory) {
  RK_ASSIGN_OR_RETURN(const Machine machine, ThisMachine());
  struct stat program;
  if (criu.empty() || ::stat(criu.back().c_str(), &program) != 0)
    return absl::NotFoundError("asking CRIU about the kernel: its program is not there");
  const std::string of_boot = absl::StrCat(kPrefix, machine.boot_id, "-");
  const std::string path = absl::StrCat(directory, "/", of_boot, program.st_mtime, "-", program.st_ino);
  if (PathExists(path)) return path;
  std::vector<std::string> command = criu;
  command.insert(command.end(), {"check", "--no-default-config"});
  absl::StatusOr<std::string> facts = absl::InternalError("CRIU was not asked");
  RK_RETURN_IF_ERROR(CatchNoMoreThreads([&] {
    std::thread([&] { facts = Ask(command); }).join();
    return absl::OkStatus();
  }));
  RK_RETURN_IF_ERROR(facts.status());
  RK_RETURN_IF_ERROR(MakeDirectories(directory));
  for (const std::string& name : ListDirectory(directory).value_or(std::vector<std::string>())) {
    if (absl::StartsWith(name, kPrefix) && !absl::StartsWith(name, of_boot))
      ::unlink(absl::StrCat(directory, "/", name).c_str());
  }
  RK_RETURN_IF_ERROR(WriteFileAtomically(path, *facts));
  return path;
}

}  // namespace rekindle::criu
