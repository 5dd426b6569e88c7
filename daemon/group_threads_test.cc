// A coordinator on a machine that makes no more threads.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <string>

#include "absl/base/config.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file.h"
#include "daemon/group_records.h"
#include "daemon/groups.h"
#include "daemon/test_node.h"
#include "rekindle/v1/group.grpc.pb.h"

#if !defined(ABSL_HAVE_ADDRESS_SANITIZER) && !defined(ABSL_HAVE_THREAD_SANITIZER)
#define RK_CAN_REFUSE_THREADS 1
namespace {
// How many more threads the calling thread can make; negative: any number.
thread_local int threads_left = -1;
}  // namespace

// In place of the C library's, here and in its libraries.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                              void* argument) noexcept {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(::dlsym(RTLD_NEXT, "pthread_create"));
  if (threads_left == 0) return EAGAIN;
  if (threads_left > 0) --threads_left;
  return create(thread, attributes, body, argument);
}
#endif

namespace rekindle::daemon {
namespace {

#ifdef RK_CAN_REFUSE_THREADS

// Members that do as they are told, as far as that goes here.
class PatientMember final : public v1::Groups::Service {
 public:
  grpc::Status TakePart(grpc::ServerContext*,
                        grpc::ServerReaderWriter<v1::PartEvent, v1::PartRequest>* stream) override {
    v1::PartRequest request;
    while (stream->Read(&request)) ++told;
    return grpc::Status::OK;
  }
  grpc::Status RestorePart(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::RestorePartEvent, v1::RestorePartRequest>* stream) override {
    v1::RestorePartRequest request;
    v1::RestorePartEvent event;
    while (stream->Read(&request)) {
      ++told;
      if (request.has_go()) went = true;
    }
    event.mutable_failed()->set_message("it was not told to go");
    event.mutable_failed()->set_code(static_cast<int>(absl::StatusCode::kCancelled));
    stream->Write(event);
    return grpc::Status::OK;
  }
  grpc::Status SettlePart(grpc::ServerContext*, const v1::SettlePartRequest* request,
                          v1::SettlePartResponse* response) override {
    response->set_state(v1::SettlePartResponse::COMMITTED);
    response->set_digest("sha256:1");
    response->set_image(absl::StrCat("train/", request->member(), ":1"));
    return grpc::Status::OK;
  }
  std::atomic<int> told{0};
  std::atomic<bool> went{false};
};

class GroupThreads : public testing::Test {
 protected:
  GroupThreads() : folder_(TemporaryDirectory::Make("/tmp", "group-threads-").value()) {
    node_ = std::make_unique<Node>(TestNodeOptions(folder_.path()));
    EXPECT_TRUE(node_->OpenStore(Node::Access::kCreate).ok());
    peers_.socket = folder_.path() + "/member.sock";
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("unix://", peers_.socket), grpc::InsecureServerCredentials());
    builder.RegisterService(&member_);
    server_ = builder.BuildAndStart();
    call_.caller.uid = ::geteuid();
    call_.cancelled = [] { return false; };
  }
  ~GroupThreads() override { server_->Shutdown(); }

  // What `work` returns where this thread can make so many.
  template <typename Work>
  static absl::Status WithThreads(int count, const Work& work) {
    threads_left = count;
    const absl::Status status = work();
    threads_left = -1;
    return status;
  }

  static void ExpectRefused(const absl::Status& status) {
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("thread"));
  }

  const TemporaryDirectory folder_;
  std::unique_ptr<Node> node_;
  GroupPeerOptions peers_;
  PatientMember member_;
  std::unique_ptr<grpc::Server> server_;
  Call call_;
};

TEST_F(GroupThreads, ACheckpointIsRefused) {
  Groups groups(*node_, peers_);
  v1::CheckpointGroupRequest request;
  request.set_reference("train:1");
  for (int i = 0; i < 3; ++i) request.add_members()->set_job(absl::StrCat("train", i));
  for (int threads : {0, 2}) {
    ExpectRefused(WithThreads(threads, [&] {
      return groups.CheckpointGroup(call_, request, [](const v1::GroupEvent&) { return true; });
    }));
  }
}

TEST_F(GroupThreads, ARestoreIsRefusedAtOnceAndNobodyIsToldToGo) {
  Groups groups(*node_, peers_);
  v1::Group group;
  group.set_id(NewGroupId());
  group.set_reference("train:1");
  group.set_complete(true);
  for (int i = 0; i < 3; ++i) {
    v1::GroupPart* part = group.add_parts();
    part->mutable_member()->set_job(absl::StrCat("train", i));
    part->set_image(absl::StrCat("train/", i, ":1"));
    part->set_digest("sha256:1");
    part->set_settled(true);
  }
  const std::string records = folder_.path() + "/store/groups";
  ASSERT_TRUE(MakeDirectories(records).ok());
  const absl::Status decided = GroupRecords(records).Decide(group);
  ASSERT_TRUE(decided.ok()) << decided;
  v1::RestoreGroupRequest request;
  request.set_reference("train:1");
  for (int threads : {0, 2}) {
    // Asked again and again by one that waits for members.
    call_.cancelled = [asked = 0]() mutable { return ++asked > 20; };
    ExpectRefused(WithThreads(threads, [&] {
      return groups.RestoreGroup(call_, request, [](const v1::GroupEvent&) { return true; });
    }));
  }
  EXPECT_FALSE(member_.went);
}

#endif

}  // namespace
}  // namespace rekindle::daemon
