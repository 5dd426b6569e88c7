// What a member's error was made of, and how it reaches the coordinator.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_cause.h"
#include "base/file.h"
#include "base/status.h"
#include "daemon/group_peers.h"
#include "daemon/groups.h"
#include "daemon/grpc_call.h"
#include "daemon/told_by_daemon.h"
#include "rekindle/v1/group.grpc.pb.h"

namespace rekindle::daemon {
namespace {

// All that it is asked to do fails as `status`; one of before the causes has its message alone.
class FailingMember final : public v1::Groups::Service {
 public:
  FailingMember(absl::Status status, bool older) : status_(std::move(status)), older_(older) {}
  grpc::Status SettlePart(grpc::ServerContext* context, const v1::SettlePartRequest*,
                          v1::SettlePartResponse*) override {
    context->AddTrailingMetadata(kToldByDaemonMetadata, older_ ? "1" : kTellsCauses);
    if (!older_) TellCause(status_, context);
    return ToGrpc(status_);
  }

 private:
  const absl::Status status_;
  const bool older_;
};

absl::Status Settled(const absl::Status& status, bool older) {
  const TemporaryDirectory folder = TemporaryDirectory::Make("/tmp", "rk-group-").value();
  GroupPeerOptions peers;
  peers.socket = folder.path() + "/member.sock";
  FailingMember member(status, older);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(absl::StrCat("unix://", peers.socket), grpc::InsecureServerCredentials());
  builder.RegisterService(&member);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  absl::Status settled = ConnectToPeer(peers, "").value()->SettlePart({}).status();
  server->Shutdown();
  return settled;
}

const absl::Status kGone = WithMessage(ErrnoStatus(ENOENT, "opening /x"), "what was to be ended has gone");
const absl::Status kNoStore = WithCause(absl::NotFoundError("nothing"), kCauseNotMounted);
const absl::Status kInWords = absl::NotFoundError("opening /x: No such file or directory");

TEST(GroupCauses, OfACallToAMember) {
  EXPECT_EQ(ErrnoOf(Settled(kGone, false)), ENOENT);
  EXPECT_EQ(CauseOf(Settled(kNoStore, false)), kCauseNotMounted);
  EXPECT_EQ(ErrnoOf(Settled(kInWords, false)), 0);
  EXPECT_EQ(ErrnoOf(Settled(kInWords, true)), ENOENT);
}

TEST(GroupCauses, OfAPartThatHasFailed) {
  for (const absl::Status& status : {kGone, kNoStore, kInWords})
    EXPECT_EQ(FromProto(ToProto(status)), status);
  v1::PartFailure older;
  older.set_code(static_cast<int>(kInWords.code()));
  older.set_message(std::string(kInWords.message()));
  EXPECT_EQ(ErrnoOf(FromProto(older)), ENOENT);
}

}  // namespace
}  // namespace rekindle::daemon
