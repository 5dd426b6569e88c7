// What a coordinator makes of members that do not keep to the protocol.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "daemon/groups.h"
#include "daemon/test_node.h"
#include "rekindle/v1/group.grpc.pb.h"

namespace rekindle::daemon {
namespace {

// Says that its job is frozen before it was asked to freeze.
class HastyMember final : public v1::Groups::Service {
 public:
  grpc::Status TakePart(grpc::ServerContext*,
                        grpc::ServerReaderWriter<v1::PartEvent, v1::PartRequest>* stream) override {
    v1::PartRequest request;
    stream->Read(&request);
    v1::PartEvent event;
    event.mutable_frozen();
    stream->Write(event);
    while (stream->Read(&request)) aborted = aborted || request.has_abort();
    return grpc::Status::OK;
  }
  bool aborted = false;
};

TEST(GroupCheckpoint, FailsIfAMemberSpeaksOutOfTurn) {
  absl::StatusOr<TemporaryDirectory> made = TemporaryDirectory::Make("/tmp", "group-checkpoint-");
  ASSERT_TRUE(made.ok()) << made.status();
  const TemporaryDirectory& folder = *made;
  Node node(TestNodeOptions(folder.path()));
  ASSERT_TRUE(node.OpenStore(Node::Access::kCreate).ok());

  HastyMember member;
  GroupPeerOptions peers;
  peers.socket = folder.path() + "/member.sock";
  grpc::ServerBuilder builder;
  builder.AddListeningPort(absl::StrCat("unix://", peers.socket), grpc::InsecureServerCredentials());
  builder.RegisterService(&member);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);

  Groups groups(node, peers);
  Call call;
  call.caller.uid = ::geteuid();
  call.cancelled = [] { return false; };
  v1::CheckpointGroupRequest request;
  request.set_reference("train:1");
  request.add_members()->set_job("train");
  bool has_result = false;
  const absl::Status taken = groups.CheckpointGroup(call, request, [&](const v1::GroupEvent& event) {
    has_result = has_result || event.has_result();
    return true;
  });
  server->Shutdown();
  EXPECT_EQ(taken.code(), absl::StatusCode::kFailedPrecondition) << taken;
  EXPECT_TRUE(absl::StrContains(taken.message(), "said 'frozen' out of turn")) << taken;
  EXPECT_FALSE(has_result);
  EXPECT_TRUE(member.aborted);
}

}  // namespace
}  // namespace rekindle::daemon
