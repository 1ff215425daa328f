"""RocketMQ keys of broker (4.9 to 5.4) and name server that are not settings here, with the reasons.

A file that contains them is accepted.
"""

from __future__ import annotations

_UNUSED_BY_REASON = {
    "one loop serves all requests, there are no pools of threads": """
        ackMessageThreadPoolNums adminBrokerThreadPoolNums batchDispatchRequestThreadPoolNums
        clientManageThreadPoolNums clientRequestThreadPoolNums consumerManageThreadPoolNums
        defaultThreadPoolNums dispatchCqCacheNum dispatchCqThreads enableAsyncReput
        enableBuildConsumeQueueConcurrently endTransactionThreadPoolNums heartbeatThreadPoolNums
        litePullMessageThreadPoolNums loadBalanceProcessorThreadPoolNums processReplyMessageThreadPoolNums
        pullMessageThreadPoolNums putMessageFutureThreadPoolNums queryMessageThreadPoolNums
        recoverConcurrently recoverThreadPoolNums sendMessageThreadPoolNums""",
    "these requests are answered at once and never queue": """
        ackThreadPoolQueueCapacity adminBrokerThreadPoolQueueCapacity clientManagerThreadPoolQueueCapacity
        clientRequestThreadPoolQueueCapacity consumerManagerThreadPoolQueueCapacity
        defaultThreadPoolQueueCapacity endTransactionPoolQueueCapacity heartbeatThreadPoolQueueCapacity
        loadBalanceThreadPoolQueueCapacity putThreadPoolQueueCapacity replyThreadPoolQueueCapacity
        unRegisterBrokerQueueCapacity waitTimeMillsInAckQueue waitTimeMillsInAdminBrokerQueue
        waitTimeMillsInHeartbeatQueue
        waitTimeMillsInTransactionQueue""",
    "sends are stored when they are read and never queue: what is too much is refused at once": """
        brokerFastFailureEnable waitTimeMillsInSendQueue""",
    "a broker registers at every interval and whenever topics change": "forceRegister",
    "lite pulls share the queue of pulls": "litePullThreadPoolQueueCapacity waitTimeMillsInLitePullQueue",
    "the network layer is not Netty": """
        clientAsyncSemaphoreValue clientCallbackExecutorThreads clientChannelMaxIdleTimeSeconds
        clientCloseSocketIfTimeout clientOnewaySemaphoreValue clientPooledByteBufAllocatorEnable
        clientSocketRcvBufSize clientSocketSndBufSize clientWorkerThreads connectTimeoutMillis
        channelNotActiveInterval disableCallbackExecutor disableNettyWorkerGroup
        enableFastChannelEventProcess enableNetWorkFlowControl enableReconnectForGoAway
        maxReconnectIntervalTimeSeconds printChannelGroups printChannelGroupsMinNum
        serverAsyncSemaphoreValue serverCallbackExecutorThreads serverNettyWorkerGroupEnable
        serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable serverSelectorThreads
        serverSocketBacklog serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads
        socksProxyConfig transferMsgByHeap useEpollNativeSelector writeBufferHighWaterMark
        writeBufferLowWaterMark""",
    "the log is written by one thread, without locks and without a pool of buffers": """
        asyncSendEnable commitCommitLogLeastPages commitCommitLogThoroughInterval commitIntervalCommitLog
        debugLockEnable dispatchFromSenderThread fastFailIfNoBufferInStorePool highSpeedMode
        maxAsyncPutMessageRequests putMessageTimeout spinLockCollisionRetreatOptimalDegree
        topicQueueLockNum transientStorePoolEnable transientStorePoolSize useABSLock
        useReentrantLockWhenPutMessage wakeCommitWhenPutMessage""",
    "files are written by system calls and read through maps that the kernel manages": """
        cleanSwapedMapInterval commitLogForceSwapMapInterval commitLogSwapMapInterval
        commitLogSwapMapReserveFileNum dataReadAheadEnable destroyMapedFileIntervalForcibly
        flushLeastPagesWhenWarmMapedFile logicQueueForceSwapMapInterval logicQueueSwapMapInterval
        logicQueueSwapMapReserveFileNum mappedFileSwapEnable putConsumeQueueDataByFileChannel
        redeleteHangedFileInterval warmMapedFileEnable writeWithoutMmap""",
    "the store flushes, checks, scans and cleans by its own rules": """
        accessMessageInMemoryHotRatio checkCRCOnRecover cleanFileForciblyEnable
        correctLogicMinOffsetForceInterval correctLogicMinOffsetSleepInterval
        deleteConsumeQueueFilesInterval diskFallRecorded enableAcceleratedRecovery
        enableLogConsumeQueueRepeatedlyBuildWhenRecover enableRunningFlagsInFlush estimateAccumulation
        flushCommitLogTimed flushConsumeQueueLeastPages logicalDiskSpaceCleanForciblyThreshold
        maxBatchDeleteFilesNum maxChecksumRange maxConsumeQueueScan maxRecoveryCommitlogFiles
        messageIndexSafe pullBatchMaxMessageCount putMsgIndexHightWater readUnCommitted
        recheckReputOffsetFromCq sampleCountThreshold sampleSteps travelCqFileNumWhenGetMessage
        useStaticSubscription wakeFlushWhenPutMessage""",
    "topics longer than 127 bytes get the newer form of record by themselves": """
        autoMessageVersionOnTopicLen maxTopicLength""",
    "queues are files, never RocksDB": """
        bottomMostCompressionTypeForConsumeQueueStore cleanRocksDBDirtyCQIntervalMin
        combineAssignOffsetCQType combineCQEnableCheckSelf combineCQLoadingCQTypes
        combineCQMaxExtraSearchCommitLogFiles combineCQPreferCQType configManagerVersion enableRocksDBLog
        flushConsumerOffsetHistoryInterval memTableFlushIntervalMs realTimePersistRocksDBConfig
        rocksdbCQDoubleWriteEnable rocksdbCompressionType rocksdbFlushWalFrequency
        rocksdbWalFileRollingThreshold statRocksDBCQIntervalSec""",
    "batch queues are not served yet": "mapperFileSizeBatchConsumeQueue searchBcqByCacheEnable",
    "compaction topics are not served yet": """
        compactionCqMappedFileSize compactionMappedFileSize compactionScheduleInternal compactionThreadNum
        enableCompaction maxOffsetMapSize""",
    "timed messages are enqueued and delivered by one loop, which tries again until it succeeds": """
        disappearTimeAfterStart timerCheckMetricsWhen timerColdDataCheckIntervalMs timerEnableCheckMetrics
        timerEnableDisruptor timerEnableRetryUntilSuccess timerFlushIntervalMs timerGetMessageThreadNum
        timerMetricSmallThreshold timerProgressLogIntervalMs timerPutMessageThreadNum timerSkipUnknownError
        timerStopDequeue timerStopEnqueue timerWarmEnable""",
    "delay levels are always served by their queues": "maxDelayTime timerInterceptDelayLevel",
    "what takes a message back is a message": "allowRecallWhenBrokerNotWriteable",
    "delayed messages are delivered in order, one level after the other": """
        enableScheduleAsyncDeliver enableScheduleMessageStats scheduleAsyncDeliverMaxPendingLimit
        scheduleAsyncDeliverMaxResendNum2Blocked""",
    "what ends a transaction is written at once, one message for each": """
        transactionMetricFlushInterval transactionOpBatchInterval transactionOpMsgMaxSize""",
    "producers are always known": "enableRegisterProducer",
    "SQL92 filters are evaluated when messages are pulled, not when they are stored": """
        bitMapLengthConsumeQueueExt enableCalcFilterBitMap enableConsumeQueueExt expectConsumerNumUseFilter
        mappedFileSizeConsumeQueueExt maxErrorRateOfBloomFilter""",
    "what a group failed to consume is tried again without a filter": "filterSupportRetry",
    "filters of groups that are gone are forgotten after a day": "filterDataCleanTimeSpan",
    "pop consumption is not served yet": """
        appendAckAsync appendCkAsync defaultMessageRequestMode defaultPopShareQueueNum enableBatchPush
        enableNotifyAfterPopOrderLockRelease enableNotifyBeforePopCalculateLag enablePopBatchAck
        enablePopBufferMerge enablePopLog enablePopMessageThreshold enableRetryTopicV2
        enableSkipLongAwaitingAck initPopOffsetByCheckMsgInMem isEnableBatchPush
        maxPopPollingSize popCkMaxBufferSize popCkOffsetMaxQueueSize
        popCkStayBufferTime popCkStayBufferTimeOut popConsumerFSServiceInit popConsumerKVServiceEnable
        popConsumerKVServiceInit popConsumerKVServiceLog popFromRetryProbability
        popInflightMessageThreshold popLongPollingForceNotifyInterval popPollingMapExpireTimeSeconds
        popPollingMapSize popPollingSize popResponseReturnActualRetryTopic popReviveMaxAttemptTimes
        popReviveMaxReturnSizePerRead retrieveMessageFromPopRetryTopicV1 reviveAckWaitMs reviveInterval
        reviveMaxSlow reviveScanTime skipWhenCKRePutReachMaxTimes""",
    "name servers are asked for a route when a consumer asks for its queues": """
        loadBalancePollNameServerInterval""",
    "brokers do not change their role by themselves yet": """
        allAckInSyncStateSet asyncLearner brokerElectionPriority brokerHeartbeatInterval
        brokerNotActiveTimeoutMillis checkSyncStateSetPeriod cleanOfflineBrokerInterval controllerAddr
        controllerHeartBeatTimeoutMills dLegerGroup dLegerPeers dLegerSelfId enableRemoteEscape
        fetchControllerAddrByDnsLookup haMaxTimeSlaveNotCatchup lockInStrictMode preferredLeaderId
        sendHeartbeatTimeoutMillis skipPreOnline storePathBrokerIdentity storePathDLedgerCommitLog
        storePathEpochFile syncBrokerMemberGroupPeriod syncBrokerMetadataPeriod
        syncControllerMetadataPeriod totalReplicas""",
    "a slave takes all of its master's metadata at once, every slaveMetadataSyncPeriod": """
        enableSplitMetadata splitMetadataSize""",
    "since RocketMQ 5 it is haMaxGapNotInSync": "haSlaveFallbehindMax",
    "an empty slave always gets the whole log": "syncFromLastFile syncMasterFlushOffsetWhenStartup",
    "a log lies on one disk": "replicasPerDiskPartition",
    "it was for messages in RocketMQ's first releases": "maxSlaveResendLength",
    "the broker always registers all topics with all name servers, and new ones by themselves": """
        compatibleWithOldNameSrv compressedRegister enableSingleTopicRegister enableSplitRegistration
        isScanAvailableNameSrv splitRegistrationSize updateNameServerAddrPeriod""",
    "name servers are listed in namesrvAddr": """
        fetchNameSrvAddrByDnsLookup fetchNamesrvAddrByAddressServer fetchNamesrvAddrInterval""",
    "static topics are not served yet": "forwardTimeout",
    "the gRPC proxy is not served yet": """
        broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond enableBroadcastOffsetStore""",
    "groups that fall behind are not disabled": """
        consumerFallbehindThreshold disableConsumeIfConsumerReadSlowly enableCleanExpiredOffset""",
    "limits for reads of cold data are as they were set": "coldCtrStrategyEnable usePIDColdCtrStrategy",
    "the kernel is asked what is in memory, at every read": "coldDataScanEnable",
    "members of a group are told of changes at once": "realTimeNotifyConsumerChange",
    "statistics are always kept, and only of what is in use": """
        accountStatsEnable accountStatsPrintZeroValues autoDeleteUnusedStats commercialBaseCount
        commercialBigCount commercialEnable commercialSizePerMsg commercialTimerCount commercialTransCount
        enableDetailStat enableLmqStats maxStatsIdleTimeInMinutes""",
    "metrics are always served for Prometheus, on metricsPromExporterPort": """
        enableConnectionMetrics enableLagAndDlqMetrics enableMessageStoreMetrics enablePopMetrics
        enableRemotingMetrics enableRequestMetrics enableStatsMetrics enableTransactionMetrics
        metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills
        metricLoggingExporterIntervalInMills metricsExporterType metricsGrpcExporterHeader
        metricsGrpcExporterTarget metricsInDelta metricsLabel metricsOtelCardinalityLimit
        metricsPromExporterHost""",
    "there are no light queues": "maxLmqConsumeQueueNum",
    "there are no filter servers": "filterServerNums",
    "there is no container of several brokers": "isBrokerContainer isInBrokerContainer",
    "logs are configured on the command line": "isolateLogEnable",
    "a server closes within shutdownTimeout": "enableShutdownGracefully shutdownWaitTimeSeconds",
    "nothing is read from there": "clusterTest productEnvName rocketmqHome",
    # In very many files that people have; RocketMQ passes over keys that it does not know.
    "RocketMQ does not read it either, as all but the log lies in storePathRootDir": """
        abortFile storeCheckpoint storePathAbort storePathCheckpoint storePathConsumeQueue
        storePathConsumerQueue storePathIndex""",
    "RocketMQ does not read this spelling either, only mappedFileSize…": """
        mapedFileSizeCommitLog mapedFileSizeConsumeQueue""",
    "a name server does not look after the replicas of brokers": """
        enableControllerInNamesrv notifyMinBrokerIdChanged supportActingMaster""",
    "which keys of a name server cannot change is fixed": "configBlackList",
    "access control is not served yet": """
        aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond authConfigPath
        authenticationMetadataProvider authenticationProvider authenticationStrategy
        authenticationWhitelist authorizationMetadataProvider authorizationProvider authorizationStrategy
        authorizationWhitelist clusterName configName initAuthenticationUser
        innerClientAuthenticationCredentials migrateAuthFromV1Enabled
        statefulAuthenticationCacheExpiredSecond statefulAuthenticationCacheMaxNum
        statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum userCacheExpiredSecond
        userCacheMaxNum userCacheRefreshSecond""",
}

UNUSED_KEYS = {key: reason for reason, keys in _UNUSED_BY_REASON.items() for key in keys.split()}
"""Key to reason: ignored with a warning."""

_OFF = ("false", "")
REFUSED_KEYS: dict[str, tuple[tuple[str, ...], str]] = {
    "aclEnable": (_OFF, "access control is not served yet, and clients would not be checked"),
    "authenticationEnabled": (_OFF, "access control is not served yet, and clients would not be checked"),
    "authorizationEnabled": (_OFF, "access control is not served yet, and clients would not be checked"),
    "duplicationEnable": (_OFF, "brokers do not change their role by themselves yet"),
    "enableControllerMode": (_OFF, "brokers do not change their role by themselves yet"),
    "enableDLegerCommitLog": (_OFF, "brokers do not change their role by themselves yet"),
    "enableLmq": (_OFF, "there are no light queues, and messages for them would be lost"),
    "enableMultiDispatch": (_OFF, "there are no light queues, and messages for them would be lost"),
    "enableSlaveActingMaster": (_OFF, "brokers do not change their role by themselves yet"),
    "messageStorePlugIn": (("",), "the store takes no plug-ins"),
    "readOnlyCommitLogStorePaths": (("",), "a commit log lies in one directory"),
    "storeType": (("default",), "queues are files, never RocksDB"),
    "useTLS": (_OFF, "connections are not encrypted yet"),
}
"""Key to accepted values and reason: any other value requests a feature that does not exist here."""
