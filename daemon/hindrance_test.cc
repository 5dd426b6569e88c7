#include "daemon/hindrance.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/machine.h"
#include "base/status.h"
#include "criu/failure.h"
#include "restore/compatibility.h"
#include "restore/files_behind_links.h"
#include "restore/left_connections.h"
#include "restore/lock_check.h"

namespace rekindle::daemon {
namespace {

TEST(HindranceTest, TroubleOfTheMachineIsNoFaultOfTheImage) {
  for (const int error : {EAGAIN, ENOMEM, ENOSPC, EDQUOT, EMFILE, EIO, ESTALE})
    EXPECT_EQ(HindranceOf(ErrnoStatus(error, "starting criu")), Hindrance::kMachine) << error;
  EXPECT_EQ(HindranceOf(absl::UnavailableError("the pager is gone")), Hindrance::kMachine);
  EXPECT_EQ(HindranceOf(absl::AbortedError("CRIU was killed by signal 9 in the middle of a restore.")),
            Hindrance::kMachine);
  EXPECT_EQ(HindranceOf(absl::InternalError("criu restore failed: (00.1) Error (criu/cr-restore.c:1): Can't "
                                            "fork for 70: Resource temporarily unavailable")),
            Hindrance::kMachine);
  EXPECT_EQ(HindranceOf(absl::FailedPreconditionError(
                absl::StrCat("/data/log: it is gone, with its folder /data: ", restore::kMakeFolder))),
            Hindrance::kMachine);
}

TEST(HindranceTest, WhatEveryImageNeedsIsWaitedFor) {
  const absl::Status no_criu =
      Annotate(LackOfMachine(absl::UnimplementedError("CRIU is needed")), "restoring");
  EXPECT_EQ(HindranceOf(no_criu), Hindrance::kLacking);
  EXPECT_FALSE(MayFitOtherImage(no_criu));
  const absl::Status no_gpu = Annotate(
      LackOfMachine(absl::FailedPreconditionError("there is no GPU x on this machine")), "restoring");
  EXPECT_EQ(HindranceOf(no_gpu), Hindrance::kLacking);
  // Where it is clear that it passes, or that an older image may do, that counts.
  EXPECT_EQ(HindranceOf(LackOfMachine(absl::ResourceExhaustedError("no room on the GPU"))),
            Hindrance::kMachine);
  EXPECT_EQ(HindranceOf(LackOfMachine(absl::FailedPreconditionError(
                absl::StrCat(kDoesNotFit, ": it was taken with NVIDIA driver 570")))),
            Hindrance::kOtherMachine);
  EXPECT_EQ(HindranceOf(absl::DeadlineExceededError("a file system does not answer")), Hindrance::kMachine);
}

TEST(HindranceTest, AStrangersLinkCanBeTakenAway) {
  const absl::Status told = absl::PermissionDeniedError(
      absl::StrCat("/data/x, which the job had in use, ", restore::kUntrustedLink, " (another user's)"));
  EXPECT_EQ(HindranceOf(told), Hindrance::kMachine);
  EXPECT_FALSE(MayFitOtherImage(told));
}

TEST(HindranceTest, ALibraryThatIsBeingReplacedIsThereAgainInAMoment) {
  const absl::Status changed = criu::FailureStatus(
      criu::Operation::kRestore, ExitState{1, 0},
      "(00.1)    70: Error (criu/files-reg.c:1): File usr/lib/libx.so has bad build-ID\n", "/restore.log");
  EXPECT_EQ(HindranceOf(Annotate(changed, "restoring")), Hindrance::kMachine) << changed;
  EXPECT_EQ(HindranceInWords(changed).find("Error (criu"), std::string::npos) << HindranceInWords(changed);
  EXPECT_NE(HindranceInWords(changed).find("/usr/lib/libx.so"), std::string::npos)
      << HindranceInWords(changed);
  v1::JobManifest manifest;
  manifest.add_files()->set_path("/usr/lib/libx.so.1");
  std::vector<std::string> warnings;
  EXPECT_EQ(HindranceOf(restore::CheckFiles(manifest, std::nullopt, &warnings)), Hindrance::kMachine);
  EXPECT_TRUE(MayFitOtherImage(restore::CheckFiles(manifest, std::nullopt, &warnings)));
  manifest.add_files()->set_path("/usr/lib/data.bin");
  EXPECT_EQ(HindranceOf(restore::CheckFiles(manifest, std::nullopt, &warnings)), Hindrance::kImage);
}

TEST(HindranceTest, WhatNoPackageHasPutThereNobodyPutsBack) {
  for (const char* path : {"/tmp/torchinductor_u/lib/a.so", "/home/u/.cache/torch/lib/a.so",
                           "/home/u/.triton/cache/lib/a.so", "/root/a.so"}) {
    v1::JobManifest manifest;
    manifest.add_files()->set_path(path);
    std::vector<std::string> warnings;
    EXPECT_EQ(HindranceOf(restore::CheckFiles(manifest, std::nullopt, &warnings)), Hindrance::kImage) << path;
  }
  const absl::Status changed = criu::FailureStatus(
      criu::Operation::kRestore, ExitState{1, 0},
      "(00.1)    70: Error (criu/files-reg.c:1): File home/u/data.txt has bad size 5 (expect 4)\n",
      "/restore.log");
  EXPECT_EQ(HindranceOf(Annotate(changed, "restoring")), Hindrance::kImage) << changed;
  EXPECT_TRUE(MayFitOtherImage(changed));
  EXPECT_FALSE(MayFitOtherImage(absl::ResourceExhaustedError("no memory")));
  EXPECT_FALSE(MayFitOtherImage(absl::OkStatus()));
}

TEST(HindranceTest, WhatIsWrongWithTheImageIsNot) {
  EXPECT_EQ(HindranceOf(absl::DataLossError("a chunk is not what it was: Input/output error")),
            Hindrance::kImage);
  EXPECT_EQ(HindranceOf(absl::FailedPreconditionError("/data/log is shorter than it was")),
            Hindrance::kImage);
  EXPECT_EQ(HindranceOf(ErrnoStatus(ENOENT, "/data/log")), Hindrance::kImage);
}

TEST(HindranceTest, AMachineThatIsNotTheImagesMayBecomeIt) {
  v1::JobManifest manifest;
  manifest.set_kernel("7.0");
  EXPECT_EQ(HindranceOf(restore::CheckMachine(manifest, Machine(), criu::Version())),
            Hindrance::kOtherMachine);
}

TEST(HindranceTest, PlacesThatMayBeFreeOrThereLater) {
  for (const char* line : {"inet: Can't bind inet socket (id 9): Address already in use",
                           "inet: Can't bind inet socket (id 9): Cannot assign requested address",
                           "sockets: Can't bind inet socket back: Cannot assign requested address",
                           "tty: Unable to open /dev/pts/3 with specified index 3"}) {
    const absl::Status failure =
        criu::FailureStatus(criu::Operation::kRestore, ExitState{1, 0},
                            absl::StrCat("(00.1)    70: Error (criu/x.c:1): ", line, "\n"), "/restore.log");
    EXPECT_NE(criu::DiagnosisId(failure), "") << failure;
    EXPECT_EQ(HindranceOf(Annotate(failure, "restoring")), Hindrance::kMachine) << failure;
  }
}

absl::Status FailureOf(absl::string_view line) {
  return Annotate(
      criu::FailureStatus(criu::Operation::kRestore, ExitState{1, 0},
                          absl::StrCat("(00.1) Error (criu/cr-restore.c:1): ", line,
                                       "\n(00.2) Error (criu/cr-restore.c:2): Restoring FAILED.\n"),
                          "/restore.log"),
      "restoring");
}

TEST(HindranceTest, AProcessThatIsKilledWhileItComesBackIsNotTheImagesFault) {
  EXPECT_EQ(HindranceOf(FailureOf("Unable to detach 70: No such process")), Hindrance::kMachine);
  EXPECT_EQ(HindranceOf(FailureOf("70 killed by signal 9: Killed")), Hindrance::kMachine);
  EXPECT_FALSE(MayFitOtherImage(FailureOf("70 killed by signal 9: Killed")));
}

TEST(HindranceTest, WhatNobodyKnowsIsTriedSomeTimes) {
  for (const char* line : {"70 stopped by signal 19: Stopped (signal)", "something new"}) {
    EXPECT_EQ(HindranceOf(FailureOf(line)), Hindrance::kMoment) << line;
    EXPECT_TRUE(MayFitOtherImage(FailureOf(line))) << line;
  }
  EXPECT_EQ(HindranceOf(FailureOf("something new: No space left on device")), Hindrance::kMachine);
  EXPECT_EQ(HindranceOf(FailureOf("Magic doesn't match for core-70.img")), Hindrance::kImage);
}

TEST(HindranceTest, WhatIsAnothersForNow) {
  EXPECT_EQ(HindranceOf(absl::AlreadyExistsError("a job named 'job' runs")), Hindrance::kName);
  EXPECT_EQ(HindranceOf(absl::FailedPreconditionError(absl::StrCat(restore::kLocksInUse, ": /data/lock"))),
            Hindrance::kMoment);
  EXPECT_EQ(HindranceOf(absl::FailedPreconditionError(absl::StrCat(
                "As it is now, ", restore::kConnectionsInUse, ", and the place of one is taken."))),
            Hindrance::kMoment);
  EXPECT_EQ(HindranceOf(absl::UnavailableError("the job needs its own PIDs back, and one is taken")),
            Hindrance::kMoment);
}

}  // namespace
}  // namespace rekindle::daemon
