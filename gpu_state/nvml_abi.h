// What Rekindle uses of NVIDIA's management library (libnvidia-ml.so.1), declared by us. It tells which GPUs
// there are, how full they are and who uses them, without a CUDA context, which would itself take device
// memory.
//
// Source: the NVML API reference.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rekindle::gpu::nvml {

using Return = int;
inline constexpr Return kSuccess = 0;
inline constexpr Return kUninitialized = 1;
inline constexpr Return kInvalidArgument = 2;
inline constexpr Return kNotSupported = 3;
inline constexpr Return kNoPermission = 4;
inline constexpr Return kInsufficientSize = 7;
inline constexpr Return kGpuIsLost = 15;  // fallen off the bus
inline constexpr Return kUnknown = 999;

struct DeviceOpaque;
using Device = DeviceOpaque*;

inline constexpr unsigned kTextBytes = 96;  // room for any of NVML's names and UUIDs

struct Memory {
  unsigned long long total, free, used;  // bytes
};
inline constexpr unsigned long long kUnknownBytes = ~0ull;
struct ProcessInfo {
  unsigned pid;
  unsigned long long used_bytes;  // kUnknownBytes where the driver does not tell
  unsigned gpu_instance, compute_instance;
};
static_assert(sizeof(Memory) == 24 && sizeof(ProcessInfo) == 24 && offsetof(ProcessInfo, used_bytes) == 8);

using InitFunction = Return (*)();                                           // nvmlInit_v2
using ShutdownFunction = Return (*)();                                       // nvmlShutdown
using ErrorStringFunction = const char* (*)(Return);                         // nvmlErrorString
using DriverVersionFunction = Return (*)(char* text, unsigned length);       // nvmlSystemGetDriverVersion
using DeviceCountFunction = Return (*)(unsigned* count);                     // nvmlDeviceGetCount_v2
using DeviceByIndexFunction = Return (*)(unsigned index, Device* device);    // nvmlDeviceGetHandleByIndex_v2
using DeviceTextFunction = Return (*)(Device, char* text, unsigned length);  // nvmlDeviceGetUUID, …GetName
using DeviceMemoryFunction = Return (*)(Device, Memory*);                    // nvmlDeviceGetMemoryInfo
using MigModeFunction = Return (*)(Device, unsigned* current, unsigned* pending);  // nvmlDeviceGetMigMode
using ProcessesFunction = Return (*)(Device, unsigned* count,
                                     ProcessInfo*);  // nvmlDeviceGetComputeRunningProcesses_v3

}  // namespace rekindle::gpu::nvml
