// A device type of its own on the host's memory: an allocator with a limit, streams that are done at once, kernels that
// are the host's, counts of calls, and a list of operators that the device is said not to have.
//
// A kernel sees the device's memory as host tensors; its results are copied into memory of the device. An operator
// that has no kernel here, or is denied, runs on the host with copies both ways, and is named in a warning once.

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace {

constexpr c10::DeviceType TYPE = c10::DeviceType::PrivateUse1;
constexpr int MOST = 64;
int devices = 1;
thread_local c10::DeviceIndex current = 0;

// ---- memory ---------------------------------------------------------------------------------------------------------

struct Memory {
  size_t limit = 0, used = 0, peak = 0;
  int64_t allocations = 0, frees = 0, refused = 0;
};
std::mutex memory_lock;
Memory memories[MOST];

struct Block {
  void* data;
  size_t size;
  c10::DeviceIndex index;
};

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  {
    std::lock_guard<std::mutex> lock(memory_lock);
    memories[block->index].used -= block->size;
    memories[block->index].frees += 1;
  }
  c10::free_cpu(block->data);
  delete block;
}

struct LimitedAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t size) override {
    const auto index = current;
    const c10::Device device(TYPE, index);
    if (size == 0) return {nullptr, nullptr, &release, device};
    {
      std::lock_guard<std::mutex> lock(memory_lock);
      auto& memory = memories[index];
      if (memory.used + size > memory.limit) memory.refused += 1;
      TORCH_CHECK_WITH(OutOfMemoryError, memory.used + size <= memory.limit, "device ", int(index),
                       " is out of memory: ", size, " bytes are asked for, ", memory.used, " of ", memory.limit,
                       " are in use");
      memory.used += size;
      memory.peak = std::max(memory.peak, memory.used);
      memory.allocations += 1;
    }
    void* data = nullptr;
    try {
      data = c10::alloc_cpu(size);
    } catch (...) {
      std::lock_guard<std::mutex> lock(memory_lock);
      memories[index].used -= size;
      throw;
    }
    return {data, new Block{data, size, index}, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t size) const override { std::memcpy(to, from, size); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}  // nothing is cached
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    std::lock_guard<std::mutex> lock(memory_lock);
    const auto& memory = memories[index];
    c10::CachingDeviceAllocator::DeviceStats stats;
    for (auto* bytes : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes}) {
      (*bytes)[0].current = int64_t(memory.used);
      (*bytes)[0].peak = int64_t(memory.peak);
    }
    stats.allocation[0].allocated = stats.num_device_alloc = memory.allocations;
    stats.allocation[0].freed = stats.num_device_free = memory.frees;
    stats.allocation[0].current = memory.allocations - memory.frees;
    stats.num_ooms = memory.refused;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    std::lock_guard<std::mutex> lock(memory_lock);
    memories[index].refused = 0;
  }
  void resetPeakStats(c10::DeviceIndex index) override {
    std::lock_guard<std::mutex> lock(memory_lock);
    memories[index].peak = memories[index].used;
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    std::lock_guard<std::mutex> lock(memory_lock);
    const auto& memory = memories[index];
    return {memory.limit - std::min(memory.limit, memory.used), memory.limit};
  }
};
LimitedAllocator allocator;
REGISTER_ALLOCATOR(TYPE, &allocator);

// ---- devices, streams, events ---------------------------------------------------------------------------------------

std::atomic<c10::StreamId> streams{0};
thread_local c10::StreamId stream_of[MOST] = {};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return TYPE; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = current;
    setDevice(device);
    return {TYPE, before};
  }
  c10::Device getDevice() const override { return {TYPE, current}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < devices, "there is no device ", int(device.index()), ", only ", devices);
    if (device.index() >= 0) current = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) current = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return c10::DeviceIndex(devices); }
  c10::Device full(c10::Device device) const { return {TYPE, device.index() < 0 ? current : device.index()}; }
  c10::Stream stream(c10::Device device, c10::StreamId id) const {
    return c10::Stream(c10::Stream::UNSAFE, full(device), id);
  }
  c10::Stream getStream(c10::Device device) const override { return stream(device, stream_of[full(device).index()]); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(device, 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return stream(device, ++streams); }
  c10::Stream getNewStream(c10::Device device, int) const override { return stream(device, ++streams); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    const auto before = getStream(next.device());
    stream_of[next.device_index()] = next.id();
    return before;
  }
  // What a stream is given is done when the call returns, so there is nothing to wait for.
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
  using Time = std::chrono::steady_clock::time_point;
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new Time;
    *static_cast<Time*>(*event) = std::chrono::steady_clock::now();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Time*>(event); }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(*static_cast<Time*>(to) - *static_cast<Time*>(from)).count();
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return c10::DeviceIndex(devices); }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex index) const override { Guard().setDevice({TYPE, index}); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return Guard().exchangeDevice({TYPE, index}).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    c10::impl::VirtualGuardImpl guard(TYPE);
    const auto before = guard.exchangeDevice(storage.device());
    auto data = allocator.allocate(size);
    guard.setDevice(before);
    if (storage.nbytes() && size) std::memcpy(data.get(), storage.data(), std::min(size, storage.nbytes()));
    storage.set_data_ptr_noswap(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(size);
  }
};
Hooks hooks;

// ---- calls ----------------------------------------------------------------------------------------------------------

std::mutex calls_lock;
std::map<std::string, int64_t> native_calls, fallback_calls;
std::set<std::string> denied, named;
bool falls_back = true;

std::string full_name(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

// The dtype of the first tensor among the arguments, as c10 writes it; empty: there is none.
std::string first_dtype(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  for (size_t at = stack.size() - op.schema().arguments().size(); at < stack.size(); ++at) {
    const auto& value = stack[at];
    if (value.isTensor() && value.toTensor().defined()) return c10::toString(value.toTensor().scalar_type());
    if (value.isTensorList() && value.toTensorList().size())
      return c10::toString(value.toTensorList().get(0).scalar_type());
  }
  return "";
}

bool is_denied(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (denied.empty()) return false;
  const auto &name = op.operator_name().name, whole = full_name(op), dtype = "/" + first_dtype(op, stack);
  return denied.count(name) || denied.count(whole) || denied.count(name + dtype) || denied.count(whole + dtype);
}

void on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto name = full_name(op);
  bool first = false;
  {
    std::lock_guard<std::mutex> lock(calls_lock);
    TORCH_CHECK_NOT_IMPLEMENTED(falls_back, "operator ", name, " is not implemented on device type ",
                                c10::get_privateuse1_backend());
    fallback_calls[name] += 1;
    first = named.insert(name).second;
  }
  if (first)
    TORCH_WARN("operator ", name, " is not implemented on device type ", c10::get_privateuse1_backend(),
               " and runs on the host, with copies");
  at::native::cpu_fallback(op, stack);
}

// The same memory as a host tensor.
at::Tensor as_host(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().type() != TYPE) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                       at::TensorOptions().dtype(tensor.dtype()).device(c10::kCPU));
}

at::Tensor to_device(const at::Tensor& host, c10::Device device) {
  if (!host.defined() || host.device().type() == TYPE) return host;
  const auto options = host.options().device(device);
  auto made = host.is_non_overlapping_and_dense() ? at::empty_strided(host.sizes(), host.strides(), options)
                                                  : at::empty_strided(host.sizes(), host.contiguous().strides(), options);
  as_host(made).copy_(host);
  return made;
}

bool writes(const c10::Argument& argument) { return argument.alias_info() && argument.alias_info()->isWrite(); }

// The argument that a result is by the schema; -1: it is a new tensor.
int same_as(const c10::Argument& result, const c10::FunctionSchema& schema) {
  if (!writes(result)) return -1;
  for (size_t index = 0; index < schema.arguments().size(); ++index) {
    const auto& argument = schema.arguments()[index];
    if (writes(argument) && *argument.alias_info() == *result.alias_info()) return int(index);
  }
  return -1;
}

struct Swapped {
  std::vector<c10::IValue> arguments;  // as they came
  c10::Device device{TYPE, current};
};

// Put host tensors in the place of the device's, and remember what was there.
Swapped swap_arguments(const c10::FunctionSchema& schema, torch::jit::Stack* stack) {
  const auto count = schema.arguments().size();
  Swapped swapped{{stack->end() - int64_t(count), stack->end()}, {TYPE, current}};
  bool found = false;
  const auto seen = [&](const at::Tensor& tensor) {
    if (!found && tensor.defined() && tensor.device().type() == TYPE) swapped.device = tensor.device(), found = true;
    return as_host(tensor);
  };
  for (size_t index = 0; index < count; ++index) {
    auto& value = (*stack)[stack->size() - count + index];
    if (value.isTensor()) {
      value = seen(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(seen(tensor));
      value = std::move(list);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList())
        list.push_back(tensor ? std::optional<at::Tensor>(seen(*tensor)) : std::nullopt);
      value = std::move(list);
    } else if (value.isDevice()) {
      if (value.toDevice().type() == TYPE && !found) {
        swapped.device = Guard().full(value.toDevice());
        found = true;
      }
      value = c10::Device(c10::kCPU);
    }
  }
  return swapped;
}

// Accelerators count whole numbers too, for which the host has no histogram: their dtype, and others in their place.
std::optional<c10::ScalarType> whole_numbers(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (op.operator_name().name != "aten::histc") return std::nullopt;
  auto& value = (*stack)[stack->size() - op.schema().arguments().size()];
  const auto type = value.toTensor().scalar_type();
  if (!c10::isIntegralType(type, false)) return std::nullopt;
  value = value.toTensor().to(c10::ScalarType::Double);
  return type;
}

void on_device(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  if (is_denied(op, *stack)) return on_host(op, stack);
  {
    std::lock_guard<std::mutex> lock(calls_lock);
    native_calls[full_name(op)] += 1;
  }
  for (const auto& argument : schema.arguments())  // what is written to may have to grow
    if (argument.is_out()) return at::native::cpu_fallback(op, stack);
  const auto swapped = swap_arguments(schema, stack);
  const auto whole = whole_numbers(op, stack);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  if (whole) stack->back() = stack->back().toTensor().to(*whole);
  const auto results = schema.returns().size();
  for (size_t index = 0; index < results; ++index) {
    auto& value = (*stack)[stack->size() - results + index];
    const int same = same_as(schema.returns()[index], schema);
    if (same >= 0) {
      value = swapped.arguments[size_t(same)];
    } else if (value.isTensor()) {
      value = to_device(value.toTensor(), swapped.device);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(to_device(tensor, swapped.device));
      value = std::move(list);
    }
  }
}

// ---- kernels that make tensors, look at them in another way, or copy them ------------------------------------------

void counted(const char* name) {
  std::lock_guard<std::mutex> lock(calls_lock);
  native_calls[name] += 1;
}

struct OnDevice {
  c10::impl::VirtualGuardImpl guard{TYPE};
  c10::Device before;
  explicit OnDevice(std::optional<c10::Device> device) : before(guard.getDevice()) {
    if (device && device->index() >= 0) guard.setDevice(*device);
  }
  ~OnDevice() { guard.uncheckedSetDevice(before); }
};

const c10::DispatchKeySet KEYS(c10::DispatchKey::PrivateUse1);

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  counted("aten::empty.memory_format");
  OnDevice on(device);
  return at::detail::empty_generic(size, &allocator, KEYS, at::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  counted("aten::empty_strided");
  OnDevice on(device);
  return at::detail::empty_strided_generic(size, stride, &allocator, KEYS, at::dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  counted("aten::_copy_from");
  as_host(to).copy_(as_host(from));
  return to;
}

const at::Tensor& resize_to(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  counted("aten::resize_");
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  if (format) impl->empty_tensor_restride(*format);
  const auto needed = at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.dtype().itemsize(),
                                                       size_t(self.storage_offset()));
  if (needed > self.storage().nbytes()) hooks.resizePrivateUse1Bytes(self.storage(), needed);
  return self;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) resize_to(to, from.sizes(), std::nullopt);
  return copy_from(from, to, false);
}

at::Scalar scalar(const at::Tensor& self) {
  counted("aten::_local_scalar_dense");
  return at::_local_scalar_dense(as_host(self));
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size,
                        at::IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  std::vector<int64_t> strides(stride.begin(), stride.end());
  if (strides.empty()) {
    strides.assign(size.size(), 1);
    for (int64_t at = int64_t(size.size()) - 2; at >= 0; --at)
      strides[size_t(at)] = strides[size_t(at) + 1] * std::max<int64_t>(size[size_t(at) + 1], 1);
  }
  impl->set_sizes_and_strides(size, strides);
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  const auto items = int64_t(source.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(source), 0, {items}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

at::Tensor view(const at::Tensor& self, at::IntArrayRef size) { return at::native::view(self, size); }

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, int64_t groups) {
  counted("aten::convolution_overrideable");
  const auto made = at::convolution(as_host(input), as_host(weight), bias ? as_host(*bias) : at::Tensor(), stride,
                                    padding, dilation, transposed, output_padding, groups);
  return to_device(made, input.device());
}

// Which way of computing attention the device has: torch's own sum of operators.
int64_t attention_choice(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                         double, bool, std::optional<double>, bool) {
  return 0;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("resize_", &resize_to);
  m.impl("_local_scalar_dense", &scalar);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("convolution_overrideable", &convolution);
  m.impl("_fused_sdp_choice", &attention_choice);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_host>()); }

// ---- for the backend's Python --------------------------------------------------------------------------------------

void begin(int64_t count, int64_t limit) {
  static bool begun = false;
  TORCH_CHECK(!begun && count >= 1 && count <= MOST, "1 to ", MOST, " devices, once in a process; not ", count);
  begun = true;
  devices = int(count);
  for (int index = 0; index < devices; ++index) memories[index].limit = size_t(limit);
  at::RegisterPrivateUse1HooksInterface(&hooks);
}

// Register kernels for these overloads.
void implement(const std::vector<std::string>& names) {
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  for (const auto& name : names)
    library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&on_device>());
}

void deny(const std::vector<std::string>& names) {
  std::lock_guard<std::mutex> lock(calls_lock);
  denied = {names.begin(), names.end()};
}

void fall_back(bool allowed) {
  std::lock_guard<std::mutex> lock(calls_lock);
  falls_back = allowed;
}

void limit(int64_t index, int64_t bytes) {
  std::lock_guard<std::mutex> lock(memory_lock);
  memories[index].limit = size_t(bytes);
}

c10::Dict<std::string, int64_t> calls(bool native) {
  std::lock_guard<std::mutex> lock(calls_lock);
  c10::Dict<std::string, int64_t> made;
  for (const auto& [name, count] : native ? native_calls : fallback_calls) made.insert(name, count);
  return made;
}

void forget() {
  std::lock_guard<std::mutex> lock(calls_lock);
  native_calls.clear(), fallback_calls.clear(), named.clear();
}

TORCH_LIBRARY(dayzero_simulated, m) {
  m.def("begin(int devices, int limit) -> ()", &begin);
  m.def("implement(str[] names) -> ()", [](const c10::List<std::string>& names) { implement(names.vec()); });
  m.def("deny(str[] names) -> ()", [](const c10::List<std::string>& names) { deny(names.vec()); });
  m.def("fall_back(bool allowed) -> ()", &fall_back);
  m.def("limit(int index, int bytes) -> ()", &limit);
  m.def("calls(bool native) -> Dict(str, int)", &calls);
  m.def("forget() -> ()", &forget);
}

}  // namespace
