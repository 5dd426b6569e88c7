#include "restore/own_temporary.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"

namespace rekindle::restore {
namespace {

constexpr char kOwn[] = "/tmp/rk-own-temporary", kOwnSeenToo[] = "/var/tmp/rk-own-temporary";
constexpr char kOwnMemory[] = "/dev/shm/rk-own-temporary";

// Under ThreadSanitizer a child has a second thread, with which it shares its root folder.
bool Enter(const UniqueFd& mounts) {
  return ::unshare(CLONE_FS) == 0 && ::setns(mounts.get(), CLONE_NEWNS) == 0;
}

TEST(OwnTemporary, OfAProcess) {
  if (::geteuid() != 0) GTEST_SKIP() << "mounts can't be made";
  auto kept = TemporaryDirectory::Make("/var/tmp", "rk-kept-");
  auto hidden = TemporaryDirectory::Make("/tmp", "rk-hidden-");
  auto memory = TemporaryDirectory::Make("/dev/shm", "rk-memory-");
  ASSERT_TRUE(kept.ok() && hidden.ok() && memory.ok());
  const std::string kept_memory = memory->path() + "/kept", hidden_memory = memory->path() + "/hidden";
  ASSERT_TRUE(MakeDirectories(kept_memory).ok() && MakeDirectories(hidden_memory).ok());
  const std::string inner = kept->path() + "/inner/folder", other = kept->path() + "/other";
  ASSERT_TRUE(MakeDirectories(inner).ok() && MakeDirectories(other).ok());
  const std::string closed = inner + "/closed";
  ASSERT_TRUE(MakeDirectories(closed).ok());
  ASSERT_TRUE(WriteFileAtomically(closed + "/file", "x").ok());
  const OwnTemporary temporary{uint64_t{1} << 20,
                               {inner, "/tmp/rk-there-is-none", "/usr", kept_memory},
                               {closed, closed},
                               uint64_t{1} << 20};
  auto mounts = MountsWithOwnTemporary(temporary);
  if (mounts.status().code() == absl::StatusCode::kPermissionDenied) GTEST_SKIP() << mounts.status();
  ASSERT_TRUE(mounts.ok()) << mounts.status();
  int told[2];
  ASSERT_EQ(::pipe(told), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto check = [&]() -> char {
      if (!Enter(*mounts)) return 'n';
      if (::access(hidden->path().c_str(), F_OK) == 0 || ::access(other.c_str(), F_OK) == 0) return 'h';
      if (::access(inner.c_str(), F_OK) != 0 || ::access("/usr/bin", F_OK) != 0) return 'k';
      if (::access(hidden_memory.c_str(), F_OK) == 0 || ::access(kept_memory.c_str(), F_OK) != 0) return 'm';
      if (::open((closed + "/file").c_str(), O_WRONLY) >= 0 || errno != EROFS) return 'w';
      if (::mkdir((closed + "/new").c_str(), 0700) == 0 || ::mkdir((inner + "/new").c_str(), 0700) != 0)
        return 'o';
      const int file = ::open(kOwn, O_RDWR | O_CREAT | O_EXCL, 0600);
      if (file < 0 || ::access(kOwnSeenToo, F_OK) != 0) return 'f';
      const std::string much(2 << 20, 'x');
      const int shared = ::open(kOwnMemory, O_RDWR | O_CREAT | O_EXCL, 0600);
      if (shared < 0 || ::write(shared, much.data(), much.size()) >= static_cast<ssize_t>(much.size()))
        return 'M';
      ssize_t written = 1;
      while (written > 0) written = ::write(file, much.data(), much.size());
      if (errno != ENOSPC) return 'b';
      if (!ResizeOwnTemporary(uint64_t{2} << 20, uint64_t{4} << 20).ok()) return 'r';
      if (::write(file, much.data(), uint64_t{1} << 20) != uint64_t{1} << 20) return 'l';
      if (::write(shared, much.data(), much.size()) != static_cast<ssize_t>(much.size())) return 'L';
      return absl::IsResourceExhausted(ResizeOwnTemporary(uint64_t{1} << 20, 0)) &&
                     absl::IsResourceExhausted(ResizeOwnTemporary(0, uint64_t{1} << 20))
                 ? 'g'
                 : 's';
    };
    const char said = check();
    if (::write(told[1], &said, 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char said = '?';
  EXPECT_EQ(::read(told[0], &said, 1), 1);
  EXPECT_EQ(said, 'g');
  // Others go on as before.
  EXPECT_TRUE(WriteFileAtomically(closed + "/file", "y").ok());
  EXPECT_FALSE(PathExists(kOwn));
  EXPECT_FALSE(PathExists(kOwnSeenToo));
  EXPECT_FALSE(PathExists(kOwnMemory));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(told[0]);
  ::close(told[1]);
}

// Who may rename in the folder above swaps it all the time, for a link to what must not be mounted on.
TEST(OwnTemporary, WhatIsPutInAFoldersPlaceIsNotMountedOn) {
  if (::geteuid() != 0) GTEST_SKIP() << "mounts can't be made";
  auto base = TemporaryDirectory::Make("/var/tmp", "rk-swapped-");
  ASSERT_TRUE(base.ok());
  const std::string code = base->path() + "/code", other = base->path() + "/other",
                    victim = base->path() + "/victim";
  ASSERT_TRUE(MakeDirectories(code).ok() && MakeDirectories(victim).ok());
  ASSERT_TRUE(WriteFileAtomically(code + "/false", "x").ok());
  ASSERT_EQ(::symlink(victim.c_str(), other.c_str()), 0);
  std::atomic<bool> done = false;
  std::thread swapper([&] {
    while (!done) ::renameat2(AT_FDCWD, code.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE);
  });
  bool deceived = false, refused = false, made = false, supported = true;
  for (int i = 0; i < 20'000 && supported && !deceived && !(i >= 300 && refused && made); ++i) {
    auto mounts = MountsWithOwnTemporary({.bytes = 0, .keep = {}, .read_only = {code}});
    supported = !absl::IsPermissionDenied(mounts.status());
    refused = refused || absl::IsFailedPrecondition(mounts.status());
    made = made || mounts.ok();
    if (!mounts.ok()) continue;
    std::thread([&] { deceived = Enter(*mounts) && PathExists(victim + "/false"); }).join();
  }
  done = true;
  swapper.join();
  if (!supported) GTEST_SKIP() << "mounts can't be made";
  EXPECT_FALSE(deceived);
  EXPECT_TRUE(refused);
  EXPECT_TRUE(made);
}

TEST(OwnTemporary, Paths) {
  const std::vector<std::string> keep = {"/usr", "/tmp/kept", "/var/tmp/also", "/dev/shm/kept"};
  for (const char* own : {"/tmp/a", "/var/tmp/a/b", "/tmp/kepts", "/tmp/also", "/dev/shm/a"})
    EXPECT_TRUE(LiesInOwnTemporary(own, keep)) << own;
  for (const char* machines : {"/tmp", "/tmp/kept", "/tmp/kept/a", "/var/tmp/also/b", "/dev/shm/kept/a",
                               "/dev/shm", "/usr/a", "/tmpfile", ""})
    EXPECT_FALSE(LiesInOwnTemporary(machines, keep)) << machines;
}

}  // namespace
}  // namespace rekindle::restore
