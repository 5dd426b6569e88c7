// The modules' own types as messages of the API.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/process_stat.h"
#include "base/timeline.h"
#include "daemon/job_registry.h"
#include "dedup_store/store.h"
#include "gpu_state/device_plan.h"
#include "proto/rekindle/v1/job_file.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::daemon {

void ToProto(const store::ImageInfo& info, v1::Image* image);
// What the record says; state and use of memory are looked up.
void ToProto(const store::GcReport& report, v1::CollectGarbageResponse* response);
void ToProto(const store::StoreStats& stats, const store::StoreLimits& limits, v1::StoreQuota* quota);
// `all`: of about now; null: it looks itself.
void ToProto(const JobRecord& record, v1::Job* job, const ProcessChildren* all = nullptr);
// What a job says of itself; a rate only while it reports. `now_unix_ns` is the present.
void ToProto(const rekindle_job_file_job& said, int64_t now_unix_ns, v1::JobProgress* progress);
void ToProto(const std::vector<std::pair<std::string, double>>& phases,
             google::protobuf::RepeatedPtrField<v1::PhaseTime>* out);
void ToProto(const Timeline& timeline, google::protobuf::RepeatedPtrField<v1::Span>* out);
void ToProto(const std::vector<std::string>& strings, google::protobuf::RepeatedPtrField<std::string>* out);

// InvalidArgument when one is no UUID.
absl::StatusOr<gpu::DevicePairs> FromProto(const google::protobuf::RepeatedPtrField<v1::GpuPair>& pairs);

}  // namespace rekindle::daemon
