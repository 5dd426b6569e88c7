#include "daemon/instance_record.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/test_child.h"

namespace rekindle::daemon {
namespace {

bool Lives(const TestChild& child) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(child.pid()), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == 0;
}

TEST(InstanceRecordTest, WhatComesWhileItsGroupIsEndedIsEndedToo) {
  auto directory = TemporaryDirectory::Make("/tmp", "rk-records-");
  ASSERT_TRUE(directory.ok()) << directory.status();
  const TestChild first, second;
  // A folder that looks like a group.
  const std::string processes = absl::StrCat(directory->path(), "/cgroup.procs");
  const auto holds = [&](const std::string& text) { return WriteFileAtomically(processes, text).ok(); };
  ASSERT_TRUE(holds(absl::StrCat(first.pid(), "\n")));
  // Of a process that is no more.
  ASSERT_TRUE(WriteFileAtomically(absl::StrCat(directory->path(), "/1.pid"),
                                  absl::StrCat(first.pid(), "\n0\n", directory->path(), "\n\n"))
                  .ok());
  std::thread kernel([&] {
    first.AwaitEnd();
    holds(absl::StrCat(second.pid(), "\n"));
    second.AwaitEnd();
    holds("");
  });
  EndLeftInstances(directory->path());
  EXPECT_FALSE(Lives(first));
  EXPECT_FALSE(Lives(second));
  first.Kill();
  second.Kill();
  kernel.join();
}

}  // namespace
}  // namespace rekindle::daemon
